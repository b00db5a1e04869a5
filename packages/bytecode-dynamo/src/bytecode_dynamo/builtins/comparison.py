"""Comparison: operators, identity, and equality of tracked values."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_torch, fold_call, is_alike, raise_error
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.array import ArrayVariable, call_array, is_folded
from bytecode_dynamo.variables.attribute import find_special
from bytecode_dynamo.variables.base import realize
from bytecode_dynamo.variables.callable import KnownObjectVariable, NumberOfVariable
from bytecode_dynamo.variables.chosen import ChosenVariable
from bytecode_dynamo.variables.class_object import ClassVariable
from bytecode_dynamo.variables.constant import ConstantVariable, SliceVariable, SymbolicVariable
from bytecode_dynamo.variables.derived import native
from bytecode_dynamo.variables.function import BoundMethodVariable
from bytecode_dynamo.variables.mapping import DictVariable, DictViewVariable
from bytecode_dynamo.variables.ragged_size import RaggedSizeVariable
from bytecode_dynamo.variables.sequence import SequenceVariable
from bytecode_dynamo.variables.sets import SetVariable, members_of
from bytecode_dynamo.variables.tensor import TensorVariable, require_not_aliased
from bytecode_dynamo.variables.text import TextVariable
from bytecode_dynamo.variables.userobject import (
    InstanceDictVariable,
    OpaqueVariable,
    UserObjectVariable,
)

from .operators import family, plain_value
from .size_arithmetic import is_number, of_sizes

COMPARE: dict[str, tuple[Callable[..., Any], str, str]] = {
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}


def compare(
    ctx: Context, symbol: str, left: VariableTracker, right: VariableTracker
) -> VariableTracker:
    """``left symbol right``."""
    function, method, reflected = COMPARE[symbol]
    left, right = (plain_value(ctx, value, method, reflected) for value in (left, right))
    left, right = (
        value.call_method(ctx, "copy", [], {}) if isinstance(value, InstanceDictVariable) else value
        for value in (left, right)
    )
    if isinstance(left, NumberOfVariable) is not isinstance(right, NumberOfVariable):
        raise GraphBreak(
            "BD007", f"{left.describe()} {symbol} {right.describe()}: one of them is not known"
        )
    if is_folded(left, right):
        return fold_call(ctx, function, [left, right])
    if isinstance(left, ArrayVariable) or isinstance(right, ArrayVariable):
        return call_array(ctx, function, [left, right], {})
    if isinstance(left, TensorVariable) or isinstance(right, TensorVariable):
        return call_torch(ctx, function, [left, right])
    if is_number(left) and is_number(right):
        return of_sizes(ctx, function, [left, right])
    asked = _compared_by_objects(ctx, symbol, left, right)
    if asked is not None:
        return asked
    if all(
        isinstance(side, (SetVariable, DictViewVariable)) for side in (left, right)
    ) and symbol not in ("==", "!="):
        small, large = (left, right) if symbol in ("<", "<=") else (right, left)
        items, size = small.unpack(ctx), len(large.unpack(ctx))
        fits = len(items) < size or (len(items) == size and symbol in ("<=", ">="))
        return ConstantVariable(fits and all(large.contains(ctx, item) for item in items))
    if symbol in ("==", "!="):
        return ConstantVariable(same_value(ctx, left, right) == (symbol == "=="))
    if family(left) is family(right) and family(left) in (list, tuple, collections.deque):
        a, b = left.unpack(ctx), right.unpack(ctx)
        pair = next((pair for pair in zip(a, b) if not is_alike(ctx, *pair)), None)
        if pair is not None:
            return compare(ctx, symbol, *pair)
        return ConstantVariable(function(len(a), len(b)))
    if isinstance(left, UserObjectVariable) or isinstance(right, UserObjectVariable):
        names = (left.python_type().__name__, right.python_type().__name__)
        raise_error(
            ctx,
            TypeError,
            f"{symbol!r} not supported between instances of {names[0]!r} and {names[1]!r}",
        )
    return fold_call(ctx, function, [left, right])


def _compared_by_objects(
    ctx: Context, symbol: str, left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """The result of the operands' own comparison methods; ``!=`` negates ``__eq__`` if there is no
    ``__ne__``.
    """
    _, method, reflected = COMPARE[symbol]
    for owner, name, other in ((left, method, right), (right, reflected, left)):
        made = owner.of_metaclass(ctx, name, [other]) if isinstance(owner, ClassVariable) else None
        if made is not None and not (
            isinstance(made, ConstantVariable) and made.value is NotImplemented
        ):
            return made
        if not isinstance(owner, UserObjectVariable):
            continue
        cls, opposite = owner.python_type(), False
        if find_special(ctx, cls, name)[1] is object.__dict__[name]:
            if symbol != "!=" or cls.__eq__ is object.__eq__:
                continue
            name, opposite = "__eq__", True
        result = owner.call_method(ctx, name, [other], {})
        if not (isinstance(result, ConstantVariable) and result.value is NotImplemented):
            return ConstantVariable(not result.truth(ctx)) if opposite else result
    return None


def same_value(ctx: Context, left: VariableTracker, right: VariableTracker) -> bool:
    """``left == right`` for anything but tensors, numbers and objects with ``__eq__``."""
    left, right = native(left), native(right)
    if isinstance(left, RaggedSizeVariable) or isinstance(right, RaggedSizeVariable):
        return left.python_type() is right.python_type() and bool(
            left.as_fake(ctx) == right.as_fake(ctx)
        )
    if isinstance(left, SequenceVariable) and isinstance(right, SequenceVariable):
        if family(left) is not family(right):
            return False
        a, b = left.unpack(ctx), right.unpack(ctx)
        return len(a) == len(b) and all(is_alike(ctx, x, y) for x, y in zip(a, b))
    if isinstance(left, DictVariable) and isinstance(right, DictVariable):
        a, b = left.entries(ctx), right.entries(ctx)
        if left.key.cls is right.key.cls is collections.OrderedDict and list(a) != list(b):
            return False
        return a.keys() == b.keys() and all(
            is_alike(ctx, realize(ctx, a[key][1]), realize(ctx, b[key][1])) for key in a
        )
    if isinstance(left, SliceVariable) and isinstance(right, SliceVariable):
        return all(is_alike(ctx, x, y) for x, y in zip(left.parts, right.parts))
    if isinstance(left, BoundMethodVariable) and isinstance(right, BoundMethodVariable):
        return is_same(ctx, left.owner, right.owner) and is_alike(
            ctx, left.function, right.function
        )
    if isinstance(left, (SetVariable, DictViewVariable)) and isinstance(
        right, (SetVariable, DictViewVariable)
    ):
        return set(members_of(ctx, left)) == set(members_of(ctx, right))
    if isinstance(left, (ConstantVariable, KnownObjectVariable)) and isinstance(
        right, (ConstantVariable, KnownObjectVariable)
    ):
        return bool(left.as_constant(ctx) == right.as_constant(ctx))
    if any(
        isinstance(side, OpaqueVariable) and side.cls.__eq__ is not object.__eq__
        for side in (left, right)
    ):
        raise GraphBreak("BD007", f"{left.describe()} == {right.describe()}")
    return is_same(ctx, left, right)


def is_same(ctx: Context, left: VariableTracker, right: VariableTracker) -> bool:
    """``left is right``."""
    late = (SymbolicVariable, TextVariable)
    if isinstance(left, late) or isinstance(right, late):
        if left is right:
            return True
        if left.python_type() is not right.python_type():
            return False
        raise GraphBreak("BD007", "identity of numbers or of texts of them")
    if isinstance(left, NumberOfVariable) and isinstance(right, NumberOfVariable):
        return left.hash_key(ctx) == right.hash_key(ctx)
    for one, two in ((left, right), (right, left)):
        if isinstance(one, ChosenVariable) and isinstance(two, TensorVariable) and one is not two:
            one.refuse("the identity")
    a, b = left.identity(), right.identity()
    same = a is b or (
        type(a) is type(b) and isinstance(a, (int, str)) and not isinstance(a, bool) and a == b
    )
    if (
        not same
        and left.source is not None
        and right.source is not None
        and left.python_type() is right.python_type()
    ):
        require_not_aliased(ctx, left, right)
    return same


def is_identical(ctx: Context, left: VariableTracker, right: VariableTracker) -> bool:
    """``left is right``, also for existing objects that have a tracker for each source."""
    if is_same(ctx, left, right):
        return True
    one, two = left.source, right.source
    if one is None or two is None or one not in ctx.existing or two not in ctx.existing:
        return False
    same = ctx.existing[one] is ctx.existing[two]
    ctx.guards.require(one, GuardKind.ALIASED if same else GuardKind.NOT_ALIASED, two)
    return same


@protocol.is_less.implement
def _is_less(ctx: Context, left: VariableTracker, right: VariableTracker) -> bool:
    """``left < right`` as a Python bool."""
    return compare(ctx, "<", left, right).truth(ctx)


@protocol.is_alike.implement
def _is_alike(ctx: Context, left: VariableTracker, right: VariableTracker) -> bool:
    """``left is right or left == right``: how containers compare."""
    if isinstance(left, TextVariable) or isinstance(right, TextVariable):
        return is_equal(ctx, left, right)
    numbers = is_number(left) and is_number(right)  # their identity may be unknown
    known = left is right or not numbers or (type(left) is type(right) is ConstantVariable)
    return (known and is_same(ctx, left, right)) or is_equal(ctx, left, right)


def is_equal(ctx: Context, left: VariableTracker, right: VariableTracker) -> bool:
    """``left == right`` as a Python bool."""
    return compare(ctx, "==", left, right).truth(ctx)
