"""Lowering rules for shape prims: each maps an index of the result to one of the operand; for
tensors in memory, it changes the strides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import sympy
import torch
from symshapes.choices import decide
from torch._ops import OpOverload

from loopir.ir.kernel import Number
from loopir.ir.node import Shape
from loopir.ir.simplify import ZERO

from .context import LoweringContext, combined_cost
from .registry import LoweringTable, prim_name
from .reshape import index_copies, reshaped_strides, source_index
from .tensor import Index, Lazy, Strided, Tensor, TracingOps

table = LoweringTable()

EXPENSIVE = 8
MAX_COPIES = 64
"""Maximum number of copies of an index that nested reshapes may make: each reshape multiplies the
index arithmetic.
"""
LARGE = 1 << 24
"""Minimum bytes of an operand that ``cat`` copies as soon as it is computed, so that not all
operands are in memory together.
"""
MOST_SELECTED = 32
"""Maximum number of operands from which ``cat`` selects per element on the CPU; more are stored one
by one. g++ takes 44 s to compile a kernel that selects from 200. On a GPU a single launch is worth
it.
"""


def view_of(
    tensor: Tensor,
    shape: Shape,
    index_map: Callable[[Index], Index],
    layout: Shape | None = None,
    copies: int = 1,
) -> Lazy:
    """A lazy tensor that reads ``tensor`` at ``index_map(index)``, which repeats parts of the index
    ``copies`` times.
    """
    cost = tensor.cost
    deeper = replace(cost, depth=cost.depth + 1, copies=cost.copies * copies)
    return Lazy(
        shape,
        tensor.dtype,
        tensor.device,
        lambda ops, index: tensor.load(ops, index_map(index)),
        deeper,
        layout,
    )


def strided(
    tensor: Strided,
    shape: Sequence[sympy.Expr],
    stride: Sequence[sympy.Expr],
    offset: sympy.Expr = ZERO,
) -> Strided:
    """Another view of the same buffer, ``offset`` elements after the start of ``tensor``."""
    start = sympy.expand(tensor.offset + offset)
    return Strided(tensor.buffer, tensor.dtype, tensor.device, tuple(shape), tuple(stride), start)


def masked_load(ops: TracingOps, mask: Any, tensor: Tensor, index: Index, fill: Number) -> Any:
    """The element at ``index`` where ``mask`` is true, else ``fill``; nothing is read where it is
    false.
    """
    if isinstance(tensor, Strided):
        if tensor.is_empty:
            return ops.constant(fill, tensor.dtype)
        return ops.load(tensor.buffer, tensor.position(index), tensor.dtype, mask, fill)
    value = tensor.load(ops.masked(mask), index)
    return ops.where(mask, value, ops.constant(fill, tensor.dtype))


@table.register("broadcast_in_dim")
def lower_broadcast(
    ctx: LoweringContext, node: Any, a: Tensor, *, shape: Sequence, dims: Sequence[int]
) -> Tensor:
    """Dim ``i`` of the operand becomes dim ``dims[i]`` of the result; sizes 1 are expanded."""
    target = ctx.shape(shape)
    repeats = any(
        size == 1 and target[d] != 1 for size, d in zip(a.shape, dims, strict=True)
    ) or len(dims) < len(target)
    if repeats and any(size != 1 for size in a.shape):
        a = _stored_if_expensive(ctx, a)
    if isinstance(a, Strided):
        stride: list[sympy.Expr] = [ZERO] * len(target)
        for size, step, d in zip(a.shape, a.stride, dims, strict=True):
            stride[d] = ZERO if size == 1 and target[d] != 1 else step
        return strided(a, target, stride)
    sizes = a.shape

    def index_map(index: Index) -> Index:
        return tuple(ZERO if size == 1 else index[d] for size, d in zip(sizes, dims, strict=True))

    return view_of(a, target, index_map)


@table.register("reshape")
def lower_reshape(ctx: LoweringContext, node: Any, a: Tensor, *, shape: Sequence) -> Tensor:
    """The same elements in row-major order with another shape."""
    source, target = a.shape, ctx.shape(shape)
    if source == target:
        return a
    if isinstance(a, Strided):
        stride = reshaped_strides(source, a.stride, target)
        if stride is not None:
            return strided(a, target, stride)
    copies = index_copies(source, target)
    if copies > 1:
        is_better = isinstance(a, Lazy) and a.cost.copies * copies > MAX_COPIES
        a = _stored_if(ctx, a, is_better)
    operand = a
    return view_of(
        operand, target, lambda index: source_index(source, target, index), copies=copies
    )


@table.register("permute")
def lower_permute(ctx: LoweringContext, node: Any, a: Tensor, *, dims: Sequence[int]) -> Tensor:
    """Dim ``i`` of the result is dim ``dims[i]`` of the operand."""
    shape = tuple(a.shape[d] for d in dims)
    if isinstance(a, Strided):
        return strided(a, shape, [a.stride[d] for d in dims])
    places = [list(dims).index(d) for d in range(len(dims))]
    layout = None if a.layout is None else tuple(a.layout[d] for d in dims)
    return view_of(a, shape, lambda index: tuple(index[p] for p in places), layout)


@table.register("slice")
def lower_slice(
    ctx: LoweringContext, node: Any, a: Tensor, *, dim: int, start: Any, stop: Any, step: Any
) -> Tensor:
    """Every ``step``-th element of ``dim`` from ``start``."""
    shape = ctx.shape(node.meta["val"].shape)
    begin, pace = ctx.expr(start), ctx.expr(step)
    if isinstance(a, Strided):
        stride = [sympy.expand(s * pace) if d == dim else s for d, s in enumerate(a.stride)]
        return strided(a, shape, stride, begin * a.stride[dim])
    return view_of(
        a,
        shape,
        lambda index: (*index[:dim], begin + index[dim] * pace, *index[dim + 1 :]),
        ctx.layout_like(a, shape),
    )


@table.register("window")
def lower_window(
    ctx: LoweringContext, node: Any, a: Tensor, *, dim: int, size: int, step: int
) -> Tensor:
    """Sliding windows along ``dim``, ``step`` elements apart: ``dim`` numbers the windows, and a
    new last dim their elements.
    """
    shape = ctx.shape(node.meta["val"].shape)
    a = _stored_if_expensive(ctx, a)
    if isinstance(a, Strided):
        stride = [sympy.expand(s * step) if d == dim else s for d, s in enumerate(a.stride)]
        return strided(a, shape, [*stride, a.stride[dim]])
    return view_of(
        a, shape, lambda index: (*index[:dim], index[dim] * step + index[-1], *index[dim + 1 : -1])
    )


@table.register("flip")
def lower_flip(ctx: LoweringContext, node: Any, a: Tensor, *, dims: Sequence[int]) -> Tensor:
    """Reverses the order of the elements along the dims."""
    shape = a.shape
    if isinstance(a, Strided):
        offset = sympy.Add(*((shape[d] - 1) * a.stride[d] for d in dims))
        return strided(a, shape, [-s if d in dims else s for d, s in enumerate(a.stride)], offset)
    return view_of(
        a,
        shape,
        lambda index: tuple(shape[d] - 1 - i if d in dims else i for d, i in enumerate(index)),
    )


@table.register("pad")
def lower_pad(
    ctx: LoweringContext, node: Any, a: Tensor, *, low: Sequence, high: Sequence, value: Number
) -> Tensor:
    """Pads each dim with ``value`` before and after; negative amounts crop."""
    before, after = ctx.shape(low), ctx.shape(high)
    shape = ctx.shape(node.meta["val"].shape)
    source = _stored_if_expensive(ctx, a)

    def function(ops: TracingOps, index: Index) -> Any:
        inside = tuple(i - lo for i, lo in zip(index, before, strict=True))
        conditions = []
        for i, lo, hi, size in zip(index, before, after, source.shape, strict=True):
            if not ctx.facts.is_nonnegative(-lo):
                conditions.append(
                    ops.le(ops.index_expr(lo, torch.int64), ops.index_expr(i, torch.int64))
                )
            if not ctx.facts.is_nonnegative(-hi):
                conditions.append(
                    ops.lt(ops.index_expr(i, torch.int64), ops.index_expr(size + lo, torch.int64))
                )
        if not conditions:
            return source.load(ops, inside)
        mask = conditions[0]
        for condition in conditions[1:]:
            mask = ops.and_(mask, condition)
        return masked_load(ops, mask, source, inside, value)

    cost, layout = combined_cost(source, weight=2), ctx.layout_like(source, shape)
    return Lazy(shape, a.dtype, a.device, function, cost, layout)


@table.register("cat")
def lower_cat(ctx: LoweringContext, node: Any, *tensors: Tensor, dim: int) -> Tensor:
    """Concatenates the operands along ``dim``: selects an operand by position, so that the result
    can be fused with its readers.
    """
    shape = ctx.shape(node.meta["val"].shape)
    pieces = [t for t in tensors if t.shape[dim] != 0]
    if len(pieces) < 2:
        only = pieces[0] if pieces else tensors[0]
        # Lazy even if the operand is in memory: ``cat`` returns a new tensor, which must not alias
        # its operand.
        return Lazy(shape, only.dtype, only.device, only.load, combined_cost(only, weight=0))
    limit = 2 * EXPENSIVE / len(tensors)
    heavy = sum(_is_expensive(t, limit) for t in tensors)
    many = len(pieces) > MOST_SELECTED and pieces[0].device.type == "cpu"
    in_parts = many or (_is_stored(node) and (2 * heavy >= len(pieces) or _are_freed(node, pieces)))
    if decide("concatenations in parts", node.name, in_parts, numbered=True):
        return _stored_in_parts(ctx, node, shape, pieces, dim)
    pieces = [_stored_if_expensive(ctx, t, limit) for t in pieces]
    sizes = (t.shape[dim] for t in pieces)
    starts = [*itertools.accumulate(sizes, lambda a, b: sympy.expand(a + b), initial=ZERO)]

    def function(ops: TracingOps, index: Index) -> Any:
        at = ops.index_expr(index[dim], torch.int64)
        below = [ops.lt(at, ops.index_expr(end, torch.int64)) for end in starts[1:-1]]
        within = [
            below[0],
            *(ops.and_(ops.not_(a), b) for a, b in itertools.pairwise(below)),
            ops.not_(below[-1]),
        ]
        result = None
        for i in reversed(range(len(pieces))):
            inside = (*index[:dim], index[dim] - starts[i], *index[dim + 1 :])
            value = masked_load(ops, within[i], pieces[i], inside, 0)
            result = value if result is None else ops.where(below[i], value, result)
        return result

    cost = combined_cost(*pieces, weight=2 * len(pieces))
    return Lazy(shape, pieces[0].dtype, pieces[0].device, function, cost)


def _is_expensive(tensor: Tensor, limit: float = EXPENSIVE) -> bool:
    """Whether computing an element takes at least ``limit`` operations."""
    return isinstance(tensor, Lazy) and tensor.cost.weight >= limit


def _stored_if_expensive(ctx: LoweringContext, tensor: Tensor, limit: float = EXPENSIVE) -> Tensor:
    return _stored_if(ctx, tensor, _is_expensive(tensor, limit))


def _stored_if(ctx: LoweringContext, tensor: Tensor, is_better: bool) -> Tensor:
    if not isinstance(tensor, Lazy):
        return tensor
    stores = decide("stored operands", ctx.origin[0], is_better, numbered=True)
    return ctx.realize(tensor) if stores else tensor


def _is_stored(node: Any) -> bool:
    """Whether the result, or a reshape of it, is returned or read by an operator."""
    return any(
        user.op == "output"
        or isinstance(user.target, OpOverload)
        or (prim_name(user) == "reshape" and _is_stored(user))
        for user in node.users
    )


def _are_freed(node: Any, pieces: Sequence[Tensor]) -> bool:
    """Whether the operands are large and have no other readers: when copied one by one, they don't
    all have to be in memory at once.
    """
    sizes = [prod(t.shape) * t.dtype.itemsize if isinstance(t, Strided) else ZERO for t in pieces]
    once = all(
        len(operand.users) == 1 and operand.op == "call_function"
        for operand in node.all_input_nodes
    )
    return once and all(isinstance(size, sympy.Integer) and size >= LARGE for size in sizes)


def _stored_in_parts(
    ctx: LoweringContext, node: Any, shape: Shape, pieces: Sequence[Tensor], dim: int
) -> Strided:
    """Computes each operand directly in its part of one buffer, in loops that can be fused with
    those that compute the operand.
    """
    stride = ctx.shape(node.meta["val"].stride())
    buffer = ctx.new_buffer(
        pieces[0].dtype, pieces[0].device, shape, stride if ctx.is_dense(shape, stride) else None
    )
    result, start = ctx.whole(buffer), ZERO
    for piece in pieces:
        part = strided(result, piece.shape, result.stride, start * result.stride[dim])
        ctx.add_pointwise(buffer, piece.shape, piece.load, part.position, is_part=True)
        start = sympy.expand(start + piece.shape[dim])
    return result
