"""Derivatives of indexing prims. Half dtypes are added up in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from primops import prims
from primops.derivatives.reduction import product_of_others
from primops.derivatives.table import derive, no_derivative, register_vjp
from primops.operand import Tensor, full_like, iota, round_to, to_dtype, widen, zeros

POSITION = "a position"
no_derivative(POSITION, prims.index, prims.index_put)
for _prim in (prims.gather, prims.scatter, prims.scatter_add, prims.scatter_reduce):
    no_derivative(POSITION, _prim, operand="index")


@register_vjp(prims.index, "a")
def _index(g: Tensor, y: Tensor, a: Tensor, *indices: Tensor, dims: Sequence[int]) -> Tensor:
    """g added up at the indices"""
    target = widen(zeros(a.shape, g))
    added = prims.index_put(target, widen(g), *indices, dims=dims, accumulate=True)
    return round_to(added, g.dtype)


@register_vjp(prims.gather, "a")
def _gather(g: Tensor, y: Tensor, a: Tensor, index: Tensor, *, dim: int) -> Tensor:
    """g added up at the indices"""
    return round_to(prims.scatter_add(widen(zeros(a.shape, g)), index, widen(g), dim=dim), g.dtype)


def _of_stored(
    g: Tensor, a: Tensor, values: Tensor, store: Callable[..., Tensor], load: Callable[..., Tensor]
) -> Tensor:
    """``load(g)`` for the values that are in the result: of those for one place, the last. A store
    of their numbers tells which.
    """
    flat = iota(values.numel(), torch.int64, g.device)
    numbers = prims.reshape(flat, shape=tuple(values.shape))
    stored = load(store(full_like(a, -1, torch.int64), numbers))
    return prims.where(prims.eq(stored, numbers), load(g), 0)


@register_vjp(prims.index_put, "a")
def _index_put(
    g: Tensor, y: Tensor, a: Tensor, values: Tensor, *indices: Tensor,
    dims: Sequence[int], accumulate: bool,
) -> Tensor:  # fmt: skip
    """g, with zeros at the indices unless accumulate"""
    if accumulate:
        return g
    nothing = zeros(values.shape, g)
    return prims.index_put(g, nothing, *indices, dims=dims, accumulate=False)


@register_vjp(prims.index_put, "values")
def _index_put_values(
    g: Tensor, y: Tensor, a: Tensor, values: Tensor, *indices: Tensor,
    dims: Sequence[int], accumulate: bool,
) -> Tensor:  # fmt: skip
    """g at the indices, 0 for overwritten values"""

    def load(x: Tensor) -> Tensor:
        return prims.index(x, *indices, dims=dims)

    def store(x: Tensor, numbers: Tensor) -> Tensor:
        return prims.index_put(x, numbers, *indices, dims=dims, accumulate=False)

    return load(g) if accumulate else _of_stored(g, a, values, store, load)


@register_vjp(prims.scatter, "a")
def _scatter(g: Tensor, y: Tensor, a: Tensor, index: Tensor, src: Tensor, *, dim: int) -> Tensor:
    """g with zeros at the indices"""
    return prims.scatter(g, index, zeros(src.shape, g), dim=dim)


@register_vjp(prims.scatter, "src")
def _scatter_src(
    g: Tensor, y: Tensor, a: Tensor, index: Tensor, src: Tensor, *, dim: int
) -> Tensor:
    """g at the indices, 0 for overwritten values"""
    return _of_stored(
        g, a, src,
        lambda x, numbers: prims.scatter(x, index, numbers, dim=dim),
        lambda x: prims.gather(x, index, dim=dim),
    )  # fmt: skip


derive(prims.scatter_add, "a", "g", lambda g, y, a, index, src, *, dim: g)
derive(
    prims.scatter_add, "src", "g at the indices",
    lambda g, y, a, index, src, *, dim: prims.gather(g, index, dim=dim),
)  # fmt: skip


def _shared(g: Tensor, y: Tensor, a: Tensor, index: Tensor, src: Tensor, dim: int) -> Tensor:
    """``g`` over the number of elements that are the extreme."""
    among = prims.eq(src, prims.gather(y, index, dim=dim))
    count = to_dtype(prims.eq(a, y), g.dtype)
    return prims.div(g, prims.scatter_add(count, index, to_dtype(among, g.dtype), dim=dim))


@register_vjp(prims.scatter_reduce, "a")
def _scatter_reduce(
    g: Tensor, y: Tensor, a: Tensor, index: Tensor, src: Tensor, *, dim: int, reduce: str
) -> Tensor:
    """prod: g * the other factors; amax, amin: g to the extremes, in equal parts"""
    if reduce == "prod":
        others = prims.scatter_reduce(full_like(a, 1), index, src, dim=dim, reduce="prod")
        return prims.mul(g, others)
    return prims.where(prims.eq(a, y), _shared(g, y, a, index, src, dim), 0)


@register_vjp(prims.scatter_reduce, "src")
def _scatter_reduce_src(
    g: Tensor, y: Tensor, a: Tensor, index: Tensor, src: Tensor, *, dim: int, reduce: str
) -> Tensor:
    """the same, at the indices"""

    def load(x: Tensor) -> Tensor:
        return prims.gather(x, index, dim=dim)

    if reduce != "prod":
        chosen = prims.eq(src, load(y))
        return prims.where(chosen, load(_shared(g, y, a, index, src, dim)), 0)
    whole, part = (prims.where(prims.eq(x, 0), 1, x) for x in (a, src))
    product = prims.scatter_reduce(whole, index, part, dim=dim, reduce="prod")
    none, some = (to_dtype(prims.eq(x, 0), g.dtype) for x in (a, src))
    zero_count = prims.scatter_add(none, index, some, dim=dim)
    return prims.mul(load(g), product_of_others(src, load(product), load(zero_count)))
