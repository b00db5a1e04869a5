"""Arithmetic of sizes and changing numbers, as expressions of symbols where Python never raises."""

from __future__ import annotations

import math
import operator
from typing import Any

import sympy
import torch
from symshapes import DataDependentError, GuardOnDataDependent

from bytecode_dynamo.errors import GraphBreak, InvariantError
from bytecode_dynamo.graph.builder import size_operation
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.dynamic_shapes import fits
from bytecode_dynamo.state.protocol import decide, fold_call, new_value
from bytecode_dynamo.state.tracker import Args, VariableTracker
from bytecode_dynamo.variables.constant import (
    ConstantVariable,
    FloatVariable,
    SymbolicVariable,
    computed_number,
)


def is_number(value: VariableTracker) -> bool:
    """Whether a value is a number or a symbolic size."""
    if isinstance(value, SymbolicVariable):
        return True
    return isinstance(value, ConstantVariable) and isinstance(value.value, (int, float))


def of_numbers(
    ctx: Context, function: Any, left: VariableTracker, right: VariableTracker
) -> VariableTracker:
    """The result of a binary Python function of two numbers."""
    if isinstance(left, FloatVariable) or isinstance(right, FloatVariable):
        return computed_number(ctx, function, [left, right])
    return of_sizes(ctx, function, [left, right])


def of_sizes(ctx: Context, function: Any, operands: list[VariableTracker]) -> VariableTracker:
    """An expression of sizes; their values if there is none or Python raises."""
    try:
        with ctx.mode:
            made = function(*(operand.as_fake(ctx) for operand in operands))
            made = known_form(made) if fits(ctx, made) else None
    except (DataDependentError, GuardOnDataDependent):
        raise GraphBreak(
            "BD001",
            f"the value of {operands[0].describe()} decides what happens next",
            "pass the number as a Python int or float, or set "
            "bytecode_dynamo.config.capture_scalar_outputs",
        ) from None
    except (TypeError, ValueError, ZeroDivisionError, OverflowError, RuntimeError):
        made = None
    return fold_call(ctx, function, operands) if made is None else new_value(ctx, made)


ROUNDING = (math.floor, math.ceil, math.trunc)
TOTAL = (math.sin, math.cos, math.tan, math.atan, math.sinh, math.cosh, math.tanh)


def function_of_size(ctx: Context, function: Any, args: Args) -> VariableTracker | None:
    """A math function of a size expression or changing float, if it has a symbolic form."""
    if len(args) != 1 or not isinstance(args[0], SymbolicVariable):
        return None
    if isinstance(args[0], FloatVariable):
        return computed_number(ctx, function, list(args))
    total = getattr(torch, f"_sym_{function.__name__}") if function in TOTAL else None
    if total:
        return new_value(ctx, decide(ctx, lambda: total(args[0].as_fake(ctx)), args[0].describe()))
    value = args[0].value
    if function is math.sqrt and decide(ctx, lambda: bool(value >= 0), args[0].describe()):
        return of_sizes(ctx, operator.pow, [args[0], ConstantVariable(0.5)])
    if function not in ROUNDING:
        return None
    if function is not math.ceil and ctx.env.bounds(value.node.expr)[0] >= 0:
        function = torch.sym_int
    return of_sizes(ctx, function, list(args))


def known_form(value: Any) -> Any:
    """A size expression that graphs can compute, or its guarded value."""
    expr = value.node.expr if isinstance(value, (torch.SymInt, torch.SymFloat)) else None
    try:
        for part in () if expr is None else sympy.preorder_traversal(expr):
            if part.args:
                size_operation(part)
    except InvariantError:
        return value.node.pytype(value)
    return value
