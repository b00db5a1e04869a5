"""Operands that aren't tensors: numbers, sizes, and numbers that Python computes from sizes."""

from __future__ import annotations

from functools import reduce
from typing import Any

import sympy
import torch
from symshapes import ToFloat, TrueDiv, expr_of

from loopir.ir.expr import operands
from loopir.ir.simplify import ZERO

from .context import LoweringContext
from .tensor import TracingOps

RELATIONS: dict[type, str] = {
    sympy.Eq: "eq", sympy.Ne: "ne", sympy.StrictLessThan: "lt", sympy.LessThan: "le",
    sympy.StrictGreaterThan: "lt", sympy.GreaterThan: "le",
}  # fmt: skip
SWAPPED = (sympy.StrictGreaterThan, sympy.GreaterThan)
FOLDED: dict[type, str] = {
    sympy.Add: "add",
    sympy.Mul: "mul",
    sympy.Max: "maximum",
    sympy.Min: "minimum",
}
FOLDED |= {sympy.And: "and", sympy.Or: "or"}


def scalar(ops: TracingOps, value: object, dtype: torch.dtype, ctx: LoweringContext) -> Any:
    """A number, size, or symbolic float or bool as a value of ``dtype``."""
    if isinstance(value, bool | int | float):
        return ops.constant(value, dtype)
    if isinstance(value, torch.SymFloat):
        return ops.cast(_float(ops, symbolic(value, ctx), ctx), dtype)
    if isinstance(value, torch.SymBool):
        return ops.cast(_truth(ops, symbolic(value, ctx), ctx), dtype)
    if isinstance(value, torch.SymInt) and not all(
        free.is_integer for free in expr_of(value).free_symbols
    ):
        return ops.cast(_float(ops, symbolic(value, ctx), ctx), dtype)
    return ops.index_expr(ctx.expr(value), dtype)


def symbolic(value: Any, ctx: LoweringContext) -> Any:
    """The expression of a symbolic number over the program's symbols."""
    return ctx.rename(expr_of(value), value.node.shape_env)


def _float(ops: TracingOps, expr: Any, ctx: LoweringContext) -> Any:
    """A symbolic float, computed in float64 as in Python."""
    if isinstance(expr, sympy.Number):
        return ops.constant(float(expr), torch.float64)
    if expr.is_Symbol and not expr.is_integer:
        number = ctx.number(expr, ops.device)
        return ops.cast(number.load(ops, (ZERO,) * len(number.shape)), torch.float64)
    if isinstance(expr, ToFloat):
        return _float(ops, operands(expr)[0], ctx)
    if expr.is_integer and all(free.is_integer for free in expr.free_symbols):
        return ops.index_expr(ctx.expr(expr), torch.float64)
    args = [_float(ops, arg, ctx) for arg in operands(expr)]
    name = (
        "div"
        if isinstance(expr, TrueDiv)
        else "pow"
        if isinstance(expr, sympy.Pow)
        else FOLDED.get(type(expr))
    )
    name = name or type(expr).__name__.removeprefix("Float").lower()
    if name in ("add", "mul", "maximum", "minimum"):
        return reduce(lambda a, b: ops.elementwise(name, a, b), args)
    if not hasattr(ops, name):
        raise ctx.fail(f"the symbolic float {expr} has no loop form")
    return ops.elementwise(name, *args)


def _truth(ops: TracingOps, expr: Any, ctx: LoweringContext) -> Any:
    """A symbolic bool."""
    if expr in (sympy.true, sympy.false):
        return ops.constant(bool(expr), torch.bool)
    if isinstance(expr, sympy.Not):
        return ops.not_(_truth(ops, expr.args[0], ctx))
    if isinstance(expr, sympy.And | sympy.Or):
        return reduce(
            lambda a, b: ops.elementwise(FOLDED[type(expr)], a, b),
            [_truth(ops, arg, ctx) for arg in expr.args],
        )
    if type(expr) not in RELATIONS:
        raise ctx.fail(f"the symbolic bool {expr} has no loop form")
    whole = all(arg.is_integer for arg in expr.args)
    sides = [
        ops.index_expr(ctx.expr(arg), torch.int64) if whole else _float(ops, arg, ctx)
        for arg in operands(expr)
    ]
    return ops.elementwise(
        RELATIONS[type(expr)], *(reversed(sides) if isinstance(expr, SWAPPED) else sides)
    )
