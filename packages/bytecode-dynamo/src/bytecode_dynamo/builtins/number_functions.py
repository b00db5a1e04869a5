"""Numbers: ``abs``, ``round``, ``divmod``, ``pow``, sums, products and extremes."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call, evaluates_each
from bytecode_dynamo.state.protocol import fold_call, new_value, raise_error
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.array import ArrayVariable
from bytecode_dynamo.variables.attribute import has_special
from bytecode_dynamo.variables.chosen import can_choose, choose
from bytecode_dynamo.variables.constant import (
    ConstantVariable,
    FloatVariable,
    SymbolicVariable,
    computed_number,
)
from bytecode_dynamo.variables.sequence import new_tuple
from bytecode_dynamo.variables.tensor import TensorVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable

from .comparison import compare
from .operators import binary
from .size_arithmetic import is_number, of_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bytecode_dynamo.state.context import Context


@evaluates_call(sum)
def sum_(
    ctx: Context, items: VariableTracker, start: VariableTracker | None = None
) -> VariableTracker:
    total = start or ConstantVariable(0)
    for item in items.unpack(ctx):
        total = binary(ctx, "+", total, item)
    return total


@evaluates_call(math.prod)
def prod(
    ctx: Context, items: VariableTracker, *, start: VariableTracker | None = None
) -> VariableTracker:
    total = start or ConstantVariable(1)
    for item in items.unpack(ctx):
        total = binary(ctx, "*", total, item)
    return total


@evaluates_each(max, min)
def extreme(
    ctx: Context,
    function: Any,
    *args: VariableTracker,
    key: VariableTracker | None = None,
    default: VariableTracker | None = None,
) -> VariableTracker:
    items = args[0].unpack(ctx) if len(args) == 1 else list(args)
    symbol = ">" if function is max else "<"
    if not items:
        return default or fold_call(ctx, function, [new_tuple([])] if args else [])
    if (
        key is None
        and any(isinstance(item, SymbolicVariable) for item in items)
        and _have_one_type(items)
    ):
        return functools.reduce(lambda a, b: symbolic_extreme(ctx, symbol, a, b), items)
    best, measure = items[0], _measured(ctx, items[0], key)
    chooses = len(items) > 1 and can_choose(ctx, items)
    for item in items[1:]:
        other = _measured(ctx, item, key)
        if chooses and can_choose(ctx, [other, measure]):
            takes_other = compare(ctx, symbol, other, measure)
            kept, best = best is measure, choose(ctx, takes_other, best, item)
            measure = best if kept else choose(ctx, takes_other, measure, other)
        elif _is_more(ctx, function, compare(ctx, symbol, other, measure), (best, item)):
            best, measure = item, other
    return best


def _is_more(
    ctx: Context, function: Any, answer: VariableTracker, items: Sequence[VariableTracker]
) -> bool:
    try:
        return answer.truth(ctx)
    except GraphBreak as error:
        tensors = [item for item in items if isinstance(item, TensorVariable)]
        if error.id != "BD001" or not any(t.as_fake(ctx).requires_grad for t in tensors):
            raise
        # a graph would give the other one a gradient of zeros, and what it was computed from NaNs
        what = f"{function.__name__}() of tensors that require gradients returns one of them"
        raise GraphBreak(
            "BD001", what, f"use torch.{function.__name__}imum, which has gradients for both"
        ) from error


def _have_one_type(items: Sequence[VariableTracker]) -> bool:
    """Whether an extreme of numbers can be an expression.

    Of ints and floats together the chosen one decides the type, and of zeros the sign.
    """
    kinds = {item.python_type() for item in items}
    floats = [
        item.value
        for item in items
        if isinstance(item, ConstantVariable) and type(item.value) is float
    ]
    return kinds in ({int}, {float}) and not any(value != value or not value for value in floats)


def _measured(ctx: Context, item: VariableTracker, key: VariableTracker | None) -> VariableTracker:
    if key is None or key.is_none:
        return item
    return key.call(ctx, [item], {})


@evaluates_call(abs)
def abs_(ctx: Context, value: VariableTracker) -> VariableTracker:
    if isinstance(value, TensorVariable):
        return value.call_method(ctx, "abs", [], {})
    if isinstance(value, FloatVariable):
        return computed_number(ctx, abs, [value])
    if isinstance(value, SymbolicVariable):
        return of_sizes(ctx, abs, [value])
    if isinstance(value, UserObjectVariable):
        return value.ask(ctx, "__abs__", [])
    return fold_call(ctx, abs, [value])


@evaluates_call(round)
def round_(ctx: Context, value: VariableTracker, *digits: VariableTracker) -> VariableTracker:
    if isinstance(value, TensorVariable):
        if not hasattr(torch.Tensor, "__round__"):
            return raise_error(ctx, TypeError, "type Tensor doesn't define __round__ method")
        return value.call_method(ctx, "round", [], {"decimals": digits[0]} if digits else {})
    if isinstance(value, UserObjectVariable):
        if value.special(ctx, "__round__") is None:
            raise_error(
                ctx,
                TypeError,
                f"type {value.python_type().__name__} doesn't define __round__ method",
            )
        return value.ask(ctx, "__round__", list(digits))
    if isinstance(value, FloatVariable):
        return computed_number(ctx, round, [value, *digits])
    return fold_call(ctx, round, [value, *digits])


@evaluates_call(divmod)
def divmod_(ctx: Context, left: VariableTracker, right: VariableTracker) -> VariableTracker:
    for owner, name, other in ((left, "__divmod__", right), (right, "__rdivmod__", left)):
        if isinstance(owner, UserObjectVariable) and has_special(ctx, owner.python_type(), name):
            made = owner.call_method(ctx, name, [other], {})
            if isinstance(made, ConstantVariable) and made.value is NotImplemented:
                raise GraphBreak(
                    "BD007", f"divmod() of {owner.describe()}, which does not implement it"
                )
            return made
    if type(left) is type(right) is ConstantVariable:
        return fold_call(ctx, divmod, [left, right])
    if not all(is_number(side) or isinstance(side, ArrayVariable) for side in (left, right)):
        names = left.python_type().__name__, right.python_type().__name__
        raise_error(
            ctx,
            TypeError,
            f"unsupported operand type(s) for divmod(): {names[0]!r} and {names[1]!r}",
        )
    return new_tuple([binary(ctx, "//", left, right), binary(ctx, "%", left, right)])


@evaluates_call(pow)
def pow_(
    ctx: Context, base: VariableTracker, exponent: VariableTracker, *modulus: VariableTracker
) -> VariableTracker:
    if modulus and modulus[0].is_none:
        modulus = ()
    if modulus and isinstance(base, UserObjectVariable):
        return base.call_method(ctx, "__pow__", [exponent, *modulus], {})
    if modulus:
        return fold_call(ctx, pow, [base, exponent, *modulus])
    return binary(ctx, "**", base, exponent)


def symbolic_extreme(
    ctx: Context, symbol: str, left: VariableTracker, right: VariableTracker
) -> VariableTracker:
    """``max`` (symbol ``>``) or ``min`` of two numbers, at least one of them symbolic."""
    function: Any = torch.sym_max if symbol == ">" else torch.sym_min
    return new_value(ctx, function(left.as_fake(ctx), right.as_fake(ctx)))
