"""Lowering rules for reductions and scans. Each becomes a node of its own; the scheduler fuses it
with its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from symshapes.choices import choose, current
from symshapes.decisions import may

from loopir.ir.kernel import Number
from loopir.ir.node import Shape
from loopir.ir.ops import REDUCED_DTYPES
from loopir.ir.simplify import ZERO, ceil_div, exact_quotient, product

from .context import LoweringContext, combined_cost
from .registry import LoweringTable, prim_name
from .tensor import Index, Lazy, Strided, Tensor, TracingOps, joined_index
from .view import masked_load

table = LoweringTable()

KINDS = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min", "any": "any", "all": "all"}
ON_BOOL = {"max": "any", "min": "all", "prod": "all", "sum": "any"}
SPLIT_WORK = 1 << 16
COLUMNS, EVEN_WORK = 64, 32
"""Minimum number of adjacent outputs for which a GPU's generator splits long sums itself, and the
number that must divide the number of terms; the sizes must be static.
"""


@table.register(*KINDS)
def lower_reduction(ctx: LoweringContext, node: Any, a: Tensor, *, dims: Sequence[int]) -> Tensor:
    """Reduces the dims and removes them."""
    kind = KINDS[node.target.name]
    if a.dtype is torch.bool:
        kind = ON_BOOL.get(kind, kind)
    if not dims or all(a.shape[d] == 1 for d in dims):
        return _without(a, dims)
    return reduce_dims(ctx, a, list(dims), kind, REDUCED_DTYPES.get(kind, a.dtype))


@table.register("argmax", "argmin")
def lower_arg(ctx: LoweringContext, node: Any, a: Tensor, *, dim: int) -> Tensor | None:
    """The position of the first minimum or maximum along ``dim``."""
    if a.dtype is torch.bool:
        return None
    outer, inner = _partition(a.shape, [dim])
    kind = node.target.name
    is_long = split_count(ctx, outer, inner, a.device.type) > 1
    if is_long and may("lowering", "split reduction", ctx.origin[0]):
        return _place_of_best(ctx, a, dim, kind.removeprefix("arg"))
    buffer = ctx.new_buffer(torch.int64, a.device, outer)
    ctx.add_reduction(buffer, outer, inner, _inner(a, [dim]), kind, torch.int64)
    return ctx.whole(buffer)


def _place_of_best(ctx: LoweringContext, a: Tensor, dim: int, kind: str) -> Tensor:
    """The first position of the extremum, by reductions that can be split."""
    best = reduce_dims(ctx, a, [dim], kind, a.dtype)

    def function(ops: TracingOps, index: Index) -> Any:
        value, wanted = a.load(ops, index), best.load(ops, (*index[:dim], *index[dim + 1 :]))
        found = ops.eq(value, wanted)
        if a.dtype.is_floating_point:
            both = ops.and_(ops.ne(value, value), ops.ne(wanted, wanted))
            found = ops.or_(found, both)
        place = ops.index_expr(index[dim], torch.int64)
        return ops.where(found, place, ops.index_expr(a.shape[dim], torch.int64))

    places = Lazy(a.shape, torch.int64, a.device, function, combined_cost(a))
    return reduce_dims(ctx, places, [dim], "min", torch.int64)


@table.register("cumsum", "cumprod")
def lower_scan(ctx: LoweringContext, node: Any, a: Tensor, *, dim: int) -> Tensor:
    """Inclusive prefix sums or products along ``dim``."""
    if a.shape[dim] == 1:
        cost, layout = combined_cost(a, weight=0), ctx.shape(node.meta["val"].stride())
        return Lazy(a.shape, a.dtype, a.device, a.load, cost, layout)
    buffer = ctx.new_buffer(_only_dtype(node) or a.dtype, a.device, a.shape)
    ctx.add_scan(buffer, a.shape, dim, a.load, node.target.name.removeprefix("cum"))
    return ctx.whole(buffer)


def _only_dtype(node: Any) -> torch.dtype | None:
    """The 16-bit float dtype to which the only user converts a float32 scan, which is then stored
    in that dtype.
    """
    dtypes = [user.kwargs["dtype"] for user in node.users if prim_name(user) == "convert"]
    dtype = dtypes[0] if len(node.users) == len(dtypes) == 1 else None
    if dtype in (torch.float16, torch.bfloat16) and node.meta["val"].dtype is torch.float32:
        return dtype
    return None


def _partition(shape: Shape, dims: Sequence[int]) -> tuple[Shape, Shape]:
    return tuple(s for d, s in enumerate(shape) if d not in dims), tuple(shape[d] for d in dims)


def _inner(a: Tensor, dims: Sequence[int]) -> Any:
    return lambda ops, outer, inner: a.load(ops, joined_index(dims, inner, outer))


def _without(a: Tensor, dims: Sequence[int]) -> Tensor:
    if isinstance(a, Strided):
        shape, stride = (_partition(each, dims)[0] for each in (a.shape, a.stride))
        return Strided(a.buffer, a.dtype, a.device, shape, stride, a.offset)
    shape, zeros = _partition(a.shape, dims)[0], [ZERO] * len(dims)

    def function(ops: TracingOps, index: Index) -> Any:
        return a.load(ops, joined_index(dims, zeros, index))

    return Lazy(shape, a.dtype, a.device, function, a.cost)


def reduce_dims(
    ctx: LoweringContext, a: Tensor, dims: list[int], kind: str, dtype: torch.dtype
) -> Strided:
    """Adds the reduction as one node, or as two if one would have too little parallelism."""
    outer, inner = _partition(a.shape, dims)
    parts = _chosen_parts(ctx, split_count(ctx, outer, inner, a.device.type), inner)
    if parts > 1 and may("lowering", "split reduction", ctx.origin[0]):
        return _two_stages(ctx, a, dims, kind, dtype, parts)
    buffer = ctx.new_buffer(dtype, a.device, outer)
    ctx.add_reduction(buffer, outer, inner, _inner(a, dims), kind, dtype)
    return ctx.whole(buffer)


def _chosen_parts(ctx: LoweringContext, parts: int, inner: Shape) -> int:
    most = ctx.facts.hint(product(inner)) if current() is not None else 0

    def is_possible(text: str) -> bool:
        return text.isdigit() and 1 <= int(text) <= max(1, most)

    name = ctx.origin[0]
    return int(choose("parts of reductions", name, str(parts), is_possible, numbered=True))


def split_count(ctx: LoweringContext, outer: Shape, inner: Shape, device: str) -> int:
    """The number of parallel parts into which to split a reduction; 1 leaves it whole."""
    if not ctx.options.split_reductions:
        return 1
    outputs = ctx.facts.hint(product(outer))
    work = ctx.facts.hint(product(inner))
    if outputs * work < SPLIT_WORK:
        return 1
    if device == "cpu":
        threads = ctx.options.threads or torch.get_num_threads()
        wanted = 1 if outputs >= 8 * threads else max(16, 4 * threads) // max(1, outputs)
    else:
        most = 8192 if work >= 8192 * 8192 else 1024  # many short parts balance the load
        own = (
            outputs >= COLUMNS
            and all(size.is_Integer for size in (*outer, *inner))
            and work % EVEN_WORK == 0
        )
        wanted = 1 if own or outputs >= 512 else most // max(1, outputs)
    return max(1, min(wanted, work // 512))


def _two_stages(
    ctx: LoweringContext, a: Tensor, dims: list[int], kind: str, dtype: torch.dtype, parts: int
) -> Strided:
    """Reduces chunks of consecutive elements along the outermost reduced dim that is long enough,
    then reduces the partial results.
    """
    along = max(dims, key=lambda d: (ctx.facts.hint(a.shape[d]) >= parts, -d))
    size = a.shape[along]
    parts = min(parts, ctx.facts.hint(size))
    for fewer in range(parts, max(1, parts // 2), -1):
        if exact_quotient(size, sympy.Integer(fewer)) is not None:
            parts = fewer
            break
    whole = exact_quotient(size, sympy.Integer(parts))
    chunk = whole if whole is not None else ceil_div(size, parts)
    outer, inner = _partition(a.shape, dims)
    place = dims.index(along)
    neutral = _neutral(kind, a.dtype)

    def function(ops: TracingOps, outer_index: Index, inner_index: Index) -> Any:
        position = outer_index[0] * chunk + inner_index[place]
        inside = (*inner_index[:place], position, *inner_index[place + 1 :])
        index = joined_index(dims, inside, outer_index[1:])
        if whole is not None:
            return a.load(ops, index)
        mask = ops.lt(ops.index_expr(position, torch.int64), ops.index_expr(size, torch.int64))
        return masked_load(ops, mask, a, index, neutral)

    first = (sympy.Integer(parts), *outer)
    partial = ctx.new_buffer(dtype, a.device, first)
    ctx.add_reduction(
        partial, first, (*inner[:place], chunk, *inner[place + 1 :]), function, kind, dtype
    )
    result = ctx.new_buffer(dtype, a.device, outer)
    ctx.add_reduction(result, outer, first[:1], _inner(ctx.whole(partial), [0]), kind, dtype)
    return ctx.whole(result)


def _neutral(kind: str, dtype: torch.dtype) -> Number:
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    if kind in ("any", "all"):
        return kind == "all"
    if dtype.is_floating_point:
        return float("-inf") if kind == "max" else float("inf")
    return torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max
