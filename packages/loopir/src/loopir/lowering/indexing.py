"""Lowering rules for indexing: gathers are lazy indirect loads; scatters copy their operand and
store into the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from loopir.ir.node import Shape, contiguous_strides

from .context import LoweringContext, combined_cost
from .elementwise import HALF, converted, is_tensor
from .registry import LoweringTable
from .scalar import scalar
from .tensor import Index, Lazy, Tensor, TracingOps, joined_index

table = LoweringTable()
FEW = 8
"""Minimum ratio of an operand's elements to the gathered ones for which computing the operand at
each gathered position is cheaper than storing all of it.
"""


def _adjacent(dims: Sequence[int]) -> bool:
    return list(dims) == list(range(dims[0], dims[0] + len(dims)))


def _place(dims: Sequence[int]) -> int:
    """The position in the result of the index tensors' dims."""
    return dims[0] if _adjacent(dims) else 0


def _split_index(index: Index, dims: Sequence[int], count: int) -> tuple[Index, Index]:
    """Splits an index of the result into the part for the index tensors and the part for the other
    dims.
    """
    at = _place(dims)
    return index[at : at + count], (*index[:at], *index[at + count :])


def _follow(
    ops: TracingOps, indices: Sequence[Tensor], at: Index, sizes: Sequence[sympy.Expr]
) -> list[sympy.Symbol]:
    return [
        ops.indirect(tensor.load(ops, at), size)
        for tensor, size in zip(indices, sizes, strict=True)
    ]


def _source(ctx: LoweringContext, a: Tensor, shape: Shape) -> Tensor:
    """The operand of a gather of ``shape``: stays lazy if it is cheap or few of its elements are
    gathered, else is stored.
    """
    places = (
        sympy.cancel(sympy.Mul(*a.shape) / sympy.Mul(*shape))
        if all(size != 0 for size in shape)
        else sympy.S.One
    )
    few = places.is_number and places >= FEW
    return ctx.realize(a) if isinstance(a, Lazy) and a.cost.weight > 2 and not few else a


@table.register("index")
def lower_index(
    ctx: LoweringContext, node: Any, a: Tensor, *indices: Tensor, dims: Sequence[int]
) -> Tensor:
    """Indexes dims ``dims`` of ``a`` with the index tensors."""
    shape = ctx.shape(node.meta["val"].shape)
    source, count = _source(ctx, a, shape), len(indices[0].shape)
    sizes = [source.shape[d] for d in dims]

    def function(ops: TracingOps, index: Index) -> Any:
        at, rest = _split_index(index, dims, count)
        found = _follow(ops, indices, at, sizes)
        return source.load(ops, joined_index(dims, found, rest))

    return Lazy(shape, a.dtype, a.device, function, combined_cost(a, *indices, weight=2))


@table.register("gather")
def lower_gather(ctx: LoweringContext, node: Any, a: Tensor, index: Tensor, *, dim: int) -> Tensor:
    """``a[..., index[i], ...]``: ``index`` selects along ``dim``, and the other dims keep their
    index.
    """
    source = _source(ctx, a, index.shape)

    def function(ops: TracingOps, at: Index) -> Any:
        (found,) = _follow(ops, [index], at, [source.shape[dim]])
        return source.load(ops, (*at[:dim], found, *at[dim + 1 :]))

    return Lazy(index.shape, a.dtype, a.device, function, combined_cost(a, index, weight=2))


def _scatter(
    ctx: LoweringContext, a: Tensor, shape: Shape, values: Any, indices: Sequence[Tensor],
    target: Any, dims: Sequence[int],
    add: bool,
) -> Tensor:  # fmt: skip
    """Copies ``a`` and stores ``values`` (of ``shape``) into the copy at ``target(index, found)``.
    A 16-bit or bool sum is computed in a wider dtype.
    """
    wide = (
        {torch.bool: torch.int32, **dict.fromkeys(HALF, torch.float32)}.get(a.dtype, a.dtype)
        if add
        else a.dtype
    )
    copy = ctx.fill(converted(ctx, a, wide), contiguous_strides(a.shape))
    sizes = [a.shape[d] for d in dims]
    buffer = ctx.graph.buffers[copy.buffer]

    def store(ops: TracingOps, index: Index) -> None:
        at, position = target(index)
        found = _follow(ops, indices, at, sizes)
        value = values.load(ops, index) if is_tensor(values) else scalar(ops, values, wide, ctx)
        mode = "add" if add else None
        ops.store(buffer.name, copy.position(position(found)), ops.cast(value, wide), mode)

    ctx.add_scatter(buffer, shape, store)
    if wide == a.dtype:
        return copy
    return Lazy(
        a.shape,
        a.dtype,
        a.device,
        lambda ops, i: ops.cast(copy.load(ops, i), a.dtype),
        combined_cost(copy),
    )


@table.register("index_put")
def lower_index_put(
    ctx: LoweringContext,
    node: Any,
    a: Tensor,
    values: Any,
    *indices: Tensor,
    dims: Sequence[int],
    accumulate: bool,
) -> Tensor:
    """``a`` with ``values`` written (or added) at the positions given by the index tensors for
    ``dims``.
    """
    count, at = len(indices[0].shape), _place(dims)
    rest = [size for d, size in enumerate(a.shape) if d not in dims]
    shape = (*rest[:at], *indices[0].shape, *rest[at:])

    def target(index: Index) -> Any:
        mine, others = _split_index(index, dims, count)
        return mine, lambda found: joined_index(dims, found, others)

    return _scatter(ctx, a, shape, values, indices, target, dims, accumulate)


@table.register("scatter", "scatter_add")
def lower_scatter(
    ctx: LoweringContext, node: Any, a: Tensor, index: Tensor, src: Any, *, dim: int
) -> Tensor:
    """``a`` with ``src`` written, or added, at ``index`` along ``dim``."""

    def target(at: Index) -> Any:
        return at, lambda found: (*at[:dim], found[0], *at[dim + 1 :])

    add = node.target.name == "scatter_add"
    return _scatter(ctx, a, index.shape, src, [index], target, [dim], add)
