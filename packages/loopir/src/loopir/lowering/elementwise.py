"""Lowering rules for elementwise prims: arithmetic, comparison, selection and conversion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from loopir.ir.body import OpsHandler

from .context import LoweringContext, combined_cost
from .registry import LoweringTable
from .scalar import scalar
from .tensor import Index, Lazy, Strided, Tensor, TracingOps

table = LoweringTable()

HALF = (torch.float16, torch.bfloat16)
COSTLY = {
    "exp", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "erf",
    "lgamma", "pow", "atan2", "div", "sqrt", "rsqrt", "fmod", "remainder", "floordiv",
}  # fmt: skip

RENAMED = {
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "bitwise_not": "not",
    "shift_left": "lshift",
}
RENAMED |= {"shift_right": "rshift", "floor_div": "floordiv"}
SWAPPED = {"gt": "lt", "ge": "le"}
# On bool these prims are logical operations; loop operations do arithmetic on numbers only.
ON_BOOL = {"add": "or", "mul": "and", "maximum": "or", "minimum": "and"}
ROUNDING = ("floor", "ceil", "trunc", "round")

UNARY = (
    "neg abs sign floor ceil trunc round exp expm1 log log2 log1p sqrt rsqrt sin cos tan asin acos "
    "atan sinh cosh tanh erf "
    "lgamma bitwise_not"
)
BINARY = (
    "add sub mul div pow atan2 maximum minimum fmod remainder floor_div bitwise_and bitwise_or "
    "bitwise_xor shift_left "
    "shift_right eq ne lt le gt ge"
)


def is_tensor(value: object) -> bool:
    """Whether a lowered operand is a tensor."""
    return isinstance(value, Strided | Lazy)


def lower_elementwise(
    ctx: LoweringContext,
    operands: tuple,
    dtype: torch.dtype,
    compute: Callable[..., Any],
    weight: int,
    numbers: torch.dtype,
) -> Lazy:
    """The lazy tensor ``compute(ops, *values)``; operands that are Python numbers are converted to
    dtype ``numbers``.
    """
    tensors = [operand for operand in operands if is_tensor(operand)]
    first: Tensor = tensors[0]

    def function(ops: TracingOps, index: Index) -> Any:
        values = [
            o.load(ops, index) if is_tensor(o) else scalar(ops, o, numbers, ctx) for o in operands
        ]
        return compute(ops, *values)

    cost = combined_cost(*tensors, weight=weight)
    return Lazy(first.shape, dtype, first.device, function, cost, preferred_layout(ctx, tensors))


def preferred_layout(ctx: LoweringContext, tensors: list[Tensor]) -> tuple | None:
    """The dense strides of the first operand that has any, so that loops access memory
    contiguously.
    """
    for tensor in tensors:
        if tensor.layout is not None and ctx.is_dense(tensor.shape, tensor.layout):
            return tensor.layout
    return None


def operand_dtype(operands: tuple) -> torch.dtype:
    """The common dtype of the tensor operands (for ``where``, of its branches)."""
    return next(operand.dtype for operand in reversed(operands) if is_tensor(operand))


def _widened(ops: OpsHandler, dtype: torch.dtype, values: tuple) -> list:
    """Casts a 16-bit float to float32. C3.3 excludes arithmetic on 16-bit floats, but comparisons
    may have such operands, and are exact in float32.
    """
    return [ops.cast(value, torch.float32) for value in values] if dtype in HALF else list(values)


def _floor_division(ops: OpsHandler, dtype: torch.dtype, a: Any, b: Any) -> Any:
    """``floor_divide`` of floats: divides ``a - fmod(a, b)``, which is exact, by ``b`` and corrects
    the result for signs.
    """
    zero, one, half = (ops.constant(number, dtype) for number in (0.0, 1.0, 0.5))
    mod = ops.fmod(a, b)
    quotient = ops.div(ops.sub(a, mod), b)
    signs_differ = ops.ne(ops.lt(b, zero), ops.lt(mod, zero))
    quotient = ops.where(
        ops.and_(ops.ne(mod, zero), signs_differ), ops.sub(quotient, one), quotient
    )
    floored = ops.floor(quotient)
    floored = ops.where(ops.lt(half, ops.sub(quotient, floored)), ops.add(floored, one), floored)
    floored = ops.where(ops.eq(quotient, zero), ops.mul(zero, ops.div(a, b)), floored)
    return ops.where(ops.eq(b, zero), ops.div(a, b), floored)


def _sign(ops: OpsHandler, dtype: torch.dtype, a: Any) -> Any:
    """The sign: -1, 0 or 1; 0 for NaN."""
    zero = ops.constant(0, dtype)
    return ops.sub(ops.cast(ops.lt(zero, a), dtype), ops.cast(ops.lt(a, zero), dtype))


def _arc(ops: OpsHandler, dtype: torch.dtype, a: Any, op: str) -> Any:
    """Arc sine or arc cosine, computed from the sides of the triangle; NaN outside [-1, 1]."""
    one = ops.constant(1.0, dtype)
    other = ops.elementwise("sqrt", ops.mul(ops.sub(one, a), ops.add(one, a)))
    return ops.elementwise("atan2", *((a, other) if op == "asin" else (other, a)))


def _operation(name: str, dtype: torch.dtype) -> Callable[..., Any]:
    """The function that computes prim ``name`` on ``dtype`` from loop operations."""
    op = RENAMED.get(name, name)
    if dtype is torch.bool and op in ON_BOOL:
        op = ON_BOOL[op]
    if dtype is torch.bool and op in ("abs", "sign"):
        return lambda ops, a: a
    if not dtype.is_floating_point and op in ROUNDING:
        return lambda ops, a: a
    if op == "floordiv" and dtype.is_floating_point:
        return lambda ops, a, b: _floor_division(ops, dtype, a, b)
    if op == "sign":
        return lambda ops, a: _sign(ops, dtype, a)
    if op in ("asin", "acos"):
        return lambda ops, a: _arc(ops, dtype, a, op)
    if op in SWAPPED:
        return lambda ops, a, b: ops.elementwise(SWAPPED[op], *_widened(ops, dtype, (b, a)))
    return lambda ops, *values: ops.elementwise(op, *_widened(ops, dtype, values))


@table.register(*UNARY.split(), *BINARY.split())
def lower_arithmetic(ctx: LoweringContext, node: torch.fx.Node, *operands: Any) -> Lazy:
    """Lowers any elementwise prim with one or two operands."""
    name: str = node.target.name  # type: ignore[union-attr]
    dtype = operand_dtype(operands)
    result = node.meta["val"].dtype
    weight = 4 if RENAMED.get(name, name) in COSTLY else 1
    compute = _operation(name, dtype)
    return lower_elementwise(ctx, operands, result, compute, weight, dtype)


@table.register("where")
def lower_where(ctx: LoweringContext, node: torch.fx.Node, condition: Any, a: Any, b: Any) -> Lazy:
    """Lowers ``where`` for any dtype; either branch may be a number."""
    dtype = node.meta["val"].dtype

    def function(ops: TracingOps, index: Index) -> Any:
        values = [
            x.load(ops, index) if is_tensor(x) else scalar(ops, x, dtype, ctx) for x in (a, b)
        ]
        return ops.where(condition.load(ops, index), *values)

    tensors = [x for x in (a, b, condition) if is_tensor(x)]
    layout = preferred_layout(ctx, tensors)
    return Lazy(condition.shape, dtype, condition.device, function, combined_cost(*tensors), layout)


def converted(ctx: LoweringContext, a: Tensor, dtype: torch.dtype, op: str = "cast") -> Lazy:
    """``a`` converted by a ``cast`` or ``bitcast``."""

    def convert(ops: TracingOps, value: Any) -> Any:
        return ops.convert(op, value, dtype)

    return lower_elementwise(ctx, (a,), dtype, convert, 1, a.dtype)


@table.register("convert")
def lower_convert(
    ctx: LoweringContext, node: torch.fx.Node, a: Tensor, *, dtype: torch.dtype
) -> Tensor:
    """Converts to another dtype; a conversion to the same dtype copies ``a`` to the strides of the
    node.
    """
    if isinstance(a, Strided) and a.dtype == dtype != node.args[0].meta["val"].dtype:  # type: ignore[union-attr]
        return a  # the scan already stores its user's dtype
    if isinstance(a, Lazy) and a.narrow is not None and a.narrow.dtype == dtype:
        return a.narrow
    if a.dtype == dtype:
        layout = ctx.shape(node.meta["val"].stride())
        return Lazy(a.shape, dtype, a.device, a.load, combined_cost(a, weight=0), layout)
    return converted(ctx, a, dtype)


@table.register("bitcast")
def lower_bitcast(
    ctx: LoweringContext, node: torch.fx.Node, a: Tensor, *, dtype: torch.dtype
) -> Tensor:
    """Reinterprets the bits as another dtype of the same width."""
    return a if a.dtype == dtype else converted(ctx, a, dtype, "bitcast")
