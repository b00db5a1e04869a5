"""Operators on trackers: numbers, symbolic sizes, tensors, containers, user objects."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from bytecode_dynamo.class_flags import native_base, type_name
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_torch, fold_call, new_value, raise_error
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.array import ArrayVariable, call_array, is_folded
from bytecode_dynamo.variables.attribute import has_python_method, has_special
from bytecode_dynamo.variables.constant import (
    ConstantVariable,
    FloatVariable,
    SymbolicVariable,
    computed_number,
)
from bytecode_dynamo.variables.derived import DerivedVariable, native
from bytecode_dynamo.variables.mapping import DictVariable, DictViewVariable, dict_of
from bytecode_dynamo.variables.proxy import ProxyVariable
from bytecode_dynamo.variables.sequence import ListVariable, RangeVariable, SequenceVariable
from bytecode_dynamo.variables.sets import SetVariable, members_of, set_of
from bytecode_dynamo.variables.tensor import TensorVariable
from bytecode_dynamo.variables.text import TextVariable, text_of
from bytecode_dynamo.variables.userobject import UserObjectVariable

from .size_arithmetic import is_number, of_numbers, of_sizes
from .text_functions import formatted

# symbol: (function, in-place function, special method without underscores)
BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "+": (operator.add, operator.iadd, "add"),
    "-": (operator.sub, operator.isub, "sub"),
    "*": (operator.mul, operator.imul, "mul"),
    "/": (operator.truediv, operator.itruediv, "truediv"),
    "//": (operator.floordiv, operator.ifloordiv, "floordiv"),
    "%": (operator.mod, operator.imod, "mod"),
    "**": (operator.pow, operator.ipow, "pow"),
    "@": (operator.matmul, operator.imatmul, "matmul"),
    "&": (operator.and_, operator.iand, "and"),
    "|": (operator.or_, operator.ior, "or"),
    "^": (operator.xor, operator.ixor, "xor"),
    "<<": (operator.lshift, operator.ilshift, "lshift"),
    ">>": (operator.rshift, operator.irshift, "rshift"),
}
UNARY: dict[str, tuple[Callable[..., Any], str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
}


def unary(ctx: Context, symbol: str, value: VariableTracker) -> VariableTracker:
    """``-x``, ``+x``, ``~x``, ``not x``."""
    if symbol == "not":
        if isinstance(value, SymbolicVariable):
            return new_value(ctx, not value.truth(ctx))
        return ConstantVariable(not value.truth(ctx))
    function, method = UNARY[symbol]
    value = plain_value(ctx, value, method)
    if isinstance(value, TensorVariable):
        return call_torch(ctx, function, [value])
    if isinstance(value, ArrayVariable):
        return call_array(ctx, function, [value], {})
    if isinstance(value, FloatVariable):
        return computed_number(ctx, function, [value])
    if isinstance(value, SymbolicVariable):
        return of_sizes(ctx, function, [value])
    if isinstance(value, UserObjectVariable):
        return value.ask(ctx, method, [])
    return fold_call(ctx, function, [value])


@protocol.binary_operation.implement
def binary(
    ctx: Context, symbol: str, left: VariableTracker, right: VariableTracker
) -> VariableTracker:
    """``left symbol right``; ``+=`` and its relatives work in place if the left operand can."""
    base = symbol.removesuffix("=")
    if base == "+" and {type(left), type(right)} - {ConstantVariable} == {TextVariable}:
        return text_of(ctx, operator.add, [left, right])
    in_place = base != symbol
    function, in_place_function, name = BINARY[base]
    left, right = (
        plain_value(ctx, value, f"__{name}__", f"__r{name}__", f"__i{name}__")
        for value in (left, right)
    )
    if is_folded(left, right):
        return fold_call(ctx, function, [left, right])
    if isinstance(left, ArrayVariable) or isinstance(right, ArrayVariable):
        in_place = in_place and isinstance(left, ArrayVariable) and not left.scalar
        return call_array(ctx, in_place_function if in_place else function, [left, right], {})
    if base == "%" and isinstance(left, ConstantVariable) and type(left.value) is str:
        return formatted(ctx, left, right)
    if isinstance(left, TensorVariable) or isinstance(right, TensorVariable):
        if _defines(ctx, right, f"__r{name}__", left) or (
            not isinstance(left, TensorVariable) and _defines(ctx, left, f"__{name}__", right)
        ):
            return _special(ctx, name, left, right, in_place)
        target = in_place_function if in_place and isinstance(left, TensorVariable) else function
        return call_torch(ctx, target, [left, right])
    if is_number(left) and is_number(right):
        return of_numbers(ctx, function, left, right)
    if isinstance(left, (SequenceVariable, DictVariable, SetVariable, DictViewVariable)):
        if isinstance(right, UserObjectVariable) and has_python_method(
            ctx, right.python_type(), f"__r{name}__"
        ):
            return _special(ctx, name, left, right, in_place)
        return _container(ctx, base, in_place, left, right)
    if (
        isinstance(right, SequenceVariable)
        and base == "*"
        and not isinstance(left, UserObjectVariable)
    ):
        return _container(ctx, base, False, right, left)
    if isinstance(left, UserObjectVariable) or isinstance(right, UserObjectVariable):
        return _special(ctx, name, left, right, in_place)
    return fold_call(ctx, function, [left, right])


def plain_value(ctx: Context, value: VariableTracker, *names: str) -> VariableTracker:
    """The number or text of a subclass instance that does not override these methods, or a proxy's
    contents.
    """
    if isinstance(value, ProxyVariable):
        return value.base
    if isinstance(value, TextVariable):
        return value.read(ctx)
    if not isinstance(value, DerivedVariable) or not isinstance(value.contents, ConstantVariable):
        return value
    own = has_python_method(ctx, value.python_type(), *names)
    return value if own else value.contents


def _container(ctx: Context, symbol: str, in_place: bool, left: Any, right: Any) -> VariableTracker:
    right = native(right)
    if in_place and isinstance(left, ListVariable) and symbol == "+":
        left.call_method(ctx, "extend", [right], {})
        return left
    if isinstance(left, (SetVariable, DictViewVariable)) and symbol in _SET_UPDATES:
        return _combined(ctx, symbol, in_place, left, right)
    if in_place and symbol == "|" and isinstance(left, DictVariable):
        left.call_method(ctx, "update", [right], {})
        return left
    if symbol == "+" and _can_join(left, right):
        return _join(ctx, left, right)
    if symbol == "*" and _repeats(left) and not isinstance(right, UserObjectVariable):
        return _repeated(ctx, left, right, in_place)
    if symbol == "|" and isinstance(left, DictVariable) and isinstance(right, DictVariable):
        return dict_of(ctx, {**left.entries(ctx), **right.entries(ctx)}, left.key.cls, left.factory)
    kind = left.python_type().__name__
    if (
        symbol == "+"
        and kind in ("list", "tuple", "deque")
        and not isinstance(right, UserObjectVariable)
    ):
        return raise_error(
            ctx,
            TypeError,
            f'can only concatenate {kind} (not "{type_name(right.python_type())}") to {kind}',
        )
    return _special(ctx, BINARY[symbol][2], left, right, in_place)


def _repeats(value: VariableTracker) -> bool:
    if isinstance(value, ConstantVariable):
        return isinstance(value.value, (str, bytes))
    return isinstance(value, SequenceVariable) and not isinstance(value, RangeVariable)


def _repeated(ctx: Context, items: Any, times: VariableTracker, in_place: bool) -> VariableTracker:
    """A sequence repeated."""
    if not has_special(ctx, times.python_type(), "__index__"):
        raise_error(
            ctx,
            TypeError,
            f"can't multiply sequence by non-int of type {times.python_type().__name__!r}",
        )
    count = times.as_index(ctx)
    if isinstance(items, ConstantVariable):
        return ConstantVariable(items.value * count)
    repeated = items.elements(ctx) * count
    if in_place and isinstance(items, ListVariable):
        items.replace(ctx, repeated)
        return items
    return items.same_kind(ctx, repeated)


def _combined(ctx: Context, symbol: str, in_place: bool, left: Any, right: Any) -> VariableTracker:
    if isinstance(left, DictViewVariable):
        left = set_of(ctx, members_of(ctx, left), set)
    elif not isinstance(right, (SetVariable, DictViewVariable)):
        return _special(ctx, BINARY[symbol][2], left, right, in_place)
    elif in_place and left.key.cls is set:
        left.call_method(ctx, _SET_UPDATES[symbol], [right], {})
        return left
    return left.call_method(ctx, f"__{BINARY[symbol][2]}__", [right], {})


_SET_UPDATES = {
    "|": "update",
    "&": "intersection_update",
    "-": "difference_update",
    "^": "symmetric_difference_update",
}


def _join(ctx: Context, left: Any, right: Any) -> VariableTracker:
    of = right if right.python_type() is torch.Size else left
    return of.same_kind(ctx, (*left.elements(ctx), *right.elements(ctx)))


def _can_join(left: Any, right: Any) -> bool:
    """Whether both are lists, tuples or deques."""
    if (
        not isinstance(left, SequenceVariable)
        or isinstance(left, RangeVariable)
        or not isinstance(right, SequenceVariable)
    ):
        return False
    return family(left) is family(right)


def _defines(
    ctx: Context, value: VariableTracker, name: str, other: VariableTracker | None = None
) -> bool:
    of_number = isinstance(value, DerivedVariable) and isinstance(value.contents, ConstantVariable)
    if not isinstance(value, UserObjectVariable) or (
        of_number and isinstance(other, TensorVariable)
    ):
        return False  # a number's method returns NotImplemented for tensors
    return has_special(ctx, value.python_type(), name)


def _special(
    ctx: Context, name: str, left: VariableTracker, right: VariableTracker, in_place: bool
) -> VariableTracker:
    attempts = [(left, f"__{name}__", right)]
    if left.python_type() is not right.python_type():
        attempts.append((right, f"__r{name}__", left))
    if in_place:
        attempts.insert(0, (left, f"__i{name}__", right))
    if right.python_type() is not left.python_type() and issubclass(
        right.python_type(), left.python_type()
    ):
        attempts = [attempts[-1], *attempts[:-1]]
    for owner, method, other in attempts:
        if _defines(ctx, owner, method, other):
            result = owner.call_method(ctx, method, [other], {})
            if not (isinstance(result, ConstantVariable) and result.value is NotImplemented):
                return result
    if name == "mul" and (_repeats(left) or _repeats(right)):
        if _repeats(left):
            return _repeated(ctx, left, right, in_place)
        return _repeated(ctx, right, left, False)
    symbol = next(symbol for symbol, entry in BINARY.items() if entry[2] == name)
    text = f"{symbol}{'=' * in_place}" if name != "pow" or in_place else "** or pow()"
    names = " and ".join(repr(type_name(side.python_type())) for side in (left, right))
    return raise_error(ctx, TypeError, f"unsupported operand type(s) for {text}: {names}")


def family(value: VariableTracker) -> type | None:
    base = native_base(value.python_type())
    return next(
        (kind for kind in (dict, list, tuple, set) if issubclass(base, kind)),
        set if base is frozenset else base,
    )
