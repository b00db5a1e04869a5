"""Derivatives of reductions and scans, exact where factors are 0."""

from __future__ import annotations

from collections.abc import Sequence

from primops import prims
from primops.derivatives.table import derive, register_vjp
from primops.operand import Tensor, spread, to_dtype

derive(prims.sum, "a", "g repeated", lambda g, y, a, *, dims: spread(g, a.shape, dims))


def product_of_others(a: Tensor, product: Tensor, zero_count: Tensor) -> Tensor:
    """For each factor the product of the others, from the product of those that are not 0 and the
    number of those that are.
    """
    is_zero = prims.eq(a, 0)
    single = prims.where(prims.eq(zero_count, 1), product, 0)
    none = prims.where(prims.eq(zero_count, 0), prims.div(product, a), 0)
    return prims.where(is_zero, single, none)


@register_vjp(prims.prod, "a")
def _prod(g: Tensor, y: Tensor, a: Tensor, *, dims: Sequence[int]) -> Tensor:
    """g * the other factors"""
    is_zero = prims.eq(a, 0)
    product = prims.prod(prims.where(is_zero, 1, a), dims=dims)
    zero_count = prims.sum(to_dtype(is_zero, g.dtype), dims=dims)
    wide = (spread(x, a.shape, dims) for x in (product, zero_count))
    return prims.mul(spread(g, a.shape, dims), product_of_others(a, *wide))


def _extreme(g: Tensor, y: Tensor, a: Tensor, *, dims: Sequence[int]) -> Tensor:
    """g to the extremes, in equal parts"""
    chosen = prims.eq(a, spread(y, a.shape, dims))
    count = prims.sum(to_dtype(chosen, g.dtype), dims=dims)
    return prims.where(chosen, spread(prims.div(g, count), a.shape, dims), 0)


register_vjp(prims.amax, "a")(_extreme)
register_vjp(prims.amin, "a")(_extreme)


def _running_sum_back(a: Tensor, dim: int) -> Tensor:
    """Sums of the last 1, 2, ... elements."""
    return prims.flip(prims.cumsum(prims.flip(a, dims=(dim,)), dim=dim), dims=(dim,))


derive(
    prims.cumsum, "a", "the reversed running sum of g",
    lambda g, y, a, *, dim: _running_sum_back(g, dim),
)  # fmt: skip


@register_vjp(prims.cumprod, "a")
def _cumprod(g: Tensor, y: Tensor, a: Tensor, *, dim: int) -> Tensor:
    """the reversed running sum of g * y, over a; at the first 0 that of g * y without it; then 0"""
    is_zero = prims.eq(a, 0)
    zero_count = prims.cumsum(to_dtype(is_zero, g.dtype), dim=dim)
    first = prims.bitwise_and(is_zero, prims.eq(zero_count, 1))
    without = prims.cumprod(prims.where(first, 1, a), dim=dim)
    before = prims.div(_running_sum_back(prims.mul(g, y), dim), a)
    at_first = _running_sum_back(prims.mul(g, without), dim)
    return prims.where(prims.eq(zero_count, 0), before, prims.where(first, at_first, 0))
