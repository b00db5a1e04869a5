"""Lowering rules for creation and random numbers, which depend on the index alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from loopir.ir.node import contiguous_strides

from .context import LoweringContext, combined_cost
from .registry import LoweringTable
from .scalar import scalar
from .tensor import Cost, Index, Lazy, Tensor, TracingOps

table = LoweringTable()

PHILOX_WEIGHT = 16


@table.register("full")
def lower_full(
    ctx: LoweringContext, node: Any, *, shape: Sequence, value: Any, dtype: torch.dtype, device: Any
) -> Lazy:
    """A tensor filled with one value."""
    return Lazy(
        ctx.shape(shape),
        dtype,
        torch.device(device),
        lambda ops, index: scalar(ops, value, dtype, ctx),
        Cost(),
    )


@table.register("iota")
def lower_iota(
    ctx: LoweringContext,
    node: Any,
    *,
    length: Any,
    start: Any,
    step: Any,
    dtype: torch.dtype,
    device: Any,
) -> Lazy:
    """``start + i * step``, computed in int64 and converted to ``dtype``."""
    first, pace = ctx.expr(start), ctx.expr(step)

    def function(ops: TracingOps, index: Index) -> Any:
        return ops.cast(ops.index_expr(first + index[0] * pace, torch.int64), dtype)

    return Lazy((ctx.expr(length),), dtype, torch.device(device), function, Cost(weight=1))


@table.register("uniform", "uniform16")
def lower_uniform(
    ctx: LoweringContext, node: Any, seed: Tensor, *, shape: Sequence, offset: Any
) -> Lazy:
    """Uniform random numbers: element ``i`` (row-major) is the one at counter ``offset + i``."""
    sizes = ctx.shape(shape)
    strides, begin = contiguous_strides(sizes), ctx.expr(offset)

    def function(ops: TracingOps, index: Index) -> Any:
        counter = sympy.Add(begin, *(i * s for i, s in zip(index, strides, strict=True)))
        return ops.elementwise(
            node.target.name, seed.load(ops, ()), ops.index_expr(counter, torch.int64)
        )

    return Lazy(
        sizes, torch.float32, seed.device, function, combined_cost(seed, weight=PHILOX_WEIGHT)
    )
