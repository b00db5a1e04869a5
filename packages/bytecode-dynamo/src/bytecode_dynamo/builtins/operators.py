"""Operators on trackers: numbers, symbolic sizes, tensors, containers, user objects."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytecode_dynamo.class_flags import native_base, type_name
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import (
    call_known,
    call_torch,
    fold_call,
    is_alike,
    new_value,
    next_item,
    raise_error,
)
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.array import ArrayVariable, call_array, is_folded
from bytecode_dynamo.variables.attribute import find_special
from bytecode_dynamo.variables.base import realize
from bytecode_dynamo.variables.callable import ClassVariable, KnownObjectVariable, NumberOfVariable
from bytecode_dynamo.variables.constant import (
    NONE,
    ConstantVariable,
    FloatVariable,
    SliceVariable,
    SymbolicVariable,
    computed_number,
)
from bytecode_dynamo.variables.derived import DerivedVariable, native
from bytecode_dynamo.variables.function import BoundMethodVariable
from bytecode_dynamo.variables.mapping import DictVariable, DictViewVariable, dict_of
from bytecode_dynamo.variables.proxy import ProxyVariable
from bytecode_dynamo.variables.sequence import ListVariable, RangeVariable, SequenceVariable
from bytecode_dynamo.variables.sets import SetVariable, members_of, set_of
from bytecode_dynamo.variables.tensor import TensorVariable, require_not_aliased
from bytecode_dynamo.variables.text import TextVariable, text_of
from bytecode_dynamo.variables.userobject import (
    InstanceDictVariable,
    OpaqueVariable,
    UserObjectVariable,
)

from .size_arithmetic import is_number, of_numbers, of_sizes
from .text_format import formatted

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
COMPARE: dict[str, tuple[Callable[..., Any], str, str]] = {
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
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
    value = _plain_value(ctx, value, method)
    if isinstance(value, TensorVariable):
        return call_torch(ctx, "call_function", function, [value], {})
    if isinstance(value, ArrayVariable):
        return call_array(ctx, function, [value], {})
    if isinstance(value, FloatVariable):
        return computed_number(ctx, function, [value])
    if isinstance(value, SymbolicVariable):
        return of_sizes(ctx, function, [value])
    if isinstance(value, UserObjectVariable):
        return value.ask(ctx, method, [])
    return fold_call(ctx, function, [value], {})


@protocol.binary_operation.implement
def binary(
    ctx: Context, symbol: str, left: VariableTracker, right: VariableTracker
) -> VariableTracker:
    """``left symbol right``; a symbol such as ``+=`` works in place where the left operand can."""
    base = symbol.removesuffix("=")
    if base == "+" and {type(left), type(right)} - {ConstantVariable} == {TextVariable}:
        return text_of(ctx, operator.add, [left, right])
    in_place = base != symbol
    function, in_place_function, name = BINARY[base]
    left, right = (
        _plain_value(ctx, value, f"__{name}__", f"__r{name}__", f"__i{name}__")
        for value in (left, right)
    )
    if is_folded(left, right):
        return fold_call(ctx, function, [left, right], {})
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
        return call_torch(ctx, "call_function", target, [left, right], {})
    if is_number(left) and is_number(right):
        return of_numbers(ctx, function, left, right)
    if isinstance(left, (SequenceVariable, DictVariable, SetVariable, DictViewVariable)):
        if isinstance(right, UserObjectVariable) and _is_written(ctx, right, f"__r{name}__"):
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
    return fold_call(ctx, function, [left, right], {})


def _plain_value(ctx: Context, value: VariableTracker, *names: str) -> VariableTracker:
    """The number or text in an object of a class that extends it and leaves these methods alone;
    what a proxy shows.
    """
    if isinstance(value, ProxyVariable):
        return value.base
    if isinstance(value, TextVariable):
        return value.read(ctx)
    if not isinstance(value, DerivedVariable) or not isinstance(value.contents, ConstantVariable):
        return value
    own = any(
        isinstance(find_special(ctx, value.python_type(), name)[1], types.FunctionType)
        for name in names
    )
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
    """A sequence so many times."""
    if find_special(ctx, times.python_type(), "__index__")[0] < 0:
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
    return _family(left) is _family(right)


def _is_written(ctx: Context, value: VariableTracker, name: str) -> bool:
    return isinstance(find_special(ctx, value.python_type(), name)[1], types.FunctionType)


def _defines(
    ctx: Context, value: VariableTracker, name: str, other: VariableTracker | None = None
) -> bool:
    of_number = isinstance(value, DerivedVariable) and isinstance(value.contents, ConstantVariable)
    if not isinstance(value, UserObjectVariable) or (
        of_number and isinstance(other, TensorVariable)
    ):
        return False  # numbers know nothing of tensors
    return find_special(ctx, value.python_type(), name)[0] >= 0


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
        return (
            _repeated(ctx, left, right, in_place)
            if _repeats(left)
            else _repeated(ctx, right, left, False)
        )
    symbol = next(symbol for symbol, entry in BINARY.items() if entry[2] == name)
    text = f"{symbol}{'=' * in_place}" if name != "pow" or in_place else "** or pow()"
    names = " and ".join(repr(type_name(side.python_type())) for side in (left, right))
    return raise_error(ctx, TypeError, f"unsupported operand type(s) for {text}: {names}")


# -- comparison ------------------------------------------------------------------------------------


def compare(
    ctx: Context, symbol: str, left: VariableTracker, right: VariableTracker
) -> VariableTracker:
    """``left symbol right``."""
    function, method, reflected = COMPARE[symbol]
    left, right = (_plain_value(ctx, value, method, reflected) for value in (left, right))
    left, right = (
        value.call_method(ctx, "copy", [], {}) if isinstance(value, InstanceDictVariable) else value
        for value in (left, right)
    )
    if isinstance(left, NumberOfVariable) is not isinstance(right, NumberOfVariable):
        raise GraphBreak(
            "BD007", f"{left.describe()} {symbol} {right.describe()}: one of them is not known"
        )
    if is_folded(left, right):
        return fold_call(ctx, function, [left, right], {})
    if isinstance(left, ArrayVariable) or isinstance(right, ArrayVariable):
        return call_array(ctx, function, [left, right], {})
    if isinstance(left, TensorVariable) or isinstance(right, TensorVariable):
        return call_torch(ctx, "call_function", function, [left, right], {})
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
    if _family(left) is _family(right) and _family(left) in (list, tuple, collections.deque):
        a, b = left.unpack(ctx), right.unpack(ctx)
        pair = next((pair for pair in zip(a, b) if not is_alike(ctx, *pair)), None)
        return (
            compare(ctx, symbol, *pair)
            if pair is not None
            else ConstantVariable(function(len(a), len(b)))
        )
    if isinstance(left, UserObjectVariable) or isinstance(right, UserObjectVariable):
        names = (left.python_type().__name__, right.python_type().__name__)
        raise_error(
            ctx,
            TypeError,
            f"{symbol!r} not supported between instances of {names[0]!r} and {names[1]!r}",
        )
    return fold_call(ctx, function, [left, right], {})


def _compared_by_objects(
    ctx: Context, symbol: str, left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """What the comparison methods of the operands say; ``!=`` is the opposite of ``__eq__`` where
    there is no ``__ne__``.
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
    if isinstance(left, SequenceVariable) and isinstance(right, SequenceVariable):
        if _family(left) is not _family(right):
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


# -- functions of the operator module --------------------------------------------------------------


def _register() -> None:
    for symbol, (function, in_place_function, _) in BINARY.items():
        evaluates_call(function)(_binary_rule(symbol))
        evaluates_call(in_place_function)(_binary_rule(symbol + "="))
    for symbol, (function, *_) in COMPARE.items():
        evaluates_call(function)(_compare_rule(symbol))
    for symbol, (function, _) in UNARY.items():
        evaluates_call(function)(_unary_rule(symbol))
    evaluates_call(operator.not_)(_unary_rule("not"))


def _binary_rule(symbol: str) -> Any:
    return lambda ctx, left, right: binary(ctx, symbol, left, right)


def _compare_rule(symbol: str) -> Any:
    return lambda ctx, left, right: compare(ctx, symbol, left, right)


def _unary_rule(symbol: str) -> Any:
    return lambda ctx, value: unary(ctx, symbol, value)


_register()


evaluates_call(operator.call)(
    lambda ctx, function, /, *args, **kwargs: function.call(ctx, list(args), kwargs)
)
evaluates_call(operator.concat)(_binary_rule("+"))
evaluates_call(operator.iconcat)(_binary_rule("+="))
evaluates_call(operator.is_)(lambda ctx, left, right: ConstantVariable(is_same(ctx, left, right)))
evaluates_call(operator.is_not)(
    lambda ctx, left, right: ConstantVariable(not is_same(ctx, left, right))
)


@evaluates_call(operator.index)
def index(ctx: Context, value: VariableTracker) -> VariableTracker:
    if isinstance(value, UserObjectVariable):
        return value.ask(ctx, "__index__", [])
    if not hasattr(value.python_type(), "__index__"):
        raise_error(
            ctx,
            TypeError,
            f"{value.python_type().__name__!r} object cannot be interpreted as an integer",
        )
    return (
        value
        if isinstance(value, SymbolicVariable)
        else value.call_method(ctx, "__index__", [], {})
    )


# -- special methods of built-in types -------------------------------------------------------------


def _matching(rule: Any, name: str) -> Any:
    """A binary special method: NotImplemented for an operand that the built-in type does not know;
    a tensor decides.
    """

    def special(ctx: Context, left: VariableTracker, right: VariableTracker) -> VariableTracker:
        if isinstance(left, ConstantVariable):
            return fold_call(ctx, getattr(left.python_type(), name), [left, right], {})
        if isinstance(left, TensorVariable):
            return left.call_method(ctx, name, [right], {})
        if _family(left) is not _family(right) and not (
            isinstance(left, SequenceVariable) and name.endswith("mul__")
        ):
            return ConstantVariable(NotImplemented)
        return rule(ctx, left, native(right))

    return special


def _family(value: VariableTracker) -> type | None:
    base = native_base(value.python_type())
    return next(
        (kind for kind in (dict, list, tuple, set) if issubclass(base, kind)),
        set if base is frozenset else base,
    )


DUNDERS: dict[str, Callable[..., VariableTracker | None]] = {
    "__len__": lambda ctx, value: value.length(ctx),
    "__bool__": lambda ctx, value: ConstantVariable(value.truth(ctx)),
    "__getitem__": lambda ctx, value, key: value.get_item(ctx, key),
    "__setitem__": lambda ctx, value, key, item: value.set_item(ctx, key, item),
    "__delitem__": lambda ctx, value, key: value.del_item(ctx, key),
    "__contains__": lambda ctx, value, item: ConstantVariable(value.contains(ctx, item)),
    "__iter__": lambda ctx, value: value.iterate(ctx),
    "__next__": lambda ctx, value: next_item(ctx, value),
    "__reversed__": lambda ctx, value: call_known(ctx, reversed, [value], {}),
    "__hash__": lambda ctx, value: call_known(ctx, hash, [value], {}),
    "__repr__": lambda ctx, value: call_known(ctx, repr, [value], {}),
    "__str__": lambda ctx, value: call_known(ctx, str, [value], {}),
    "__format__": lambda ctx, value, spec: call_known(ctx, format, [value, spec], {}),
    "__init__": lambda ctx, value, *args, **named: initialize(ctx, value, args, named),
    **{
        method: _matching(_compare_rule(symbol), method)
        for symbol, (_, method, _) in COMPARE.items()
    },
    **{
        f"__{name}__": _matching(_binary_rule(symbol), f"__{name}__")
        for symbol, (_, _, name) in BINARY.items()
    },
    **{f"__i{name}__": _binary_rule(symbol + "=") for symbol, (_, _, name) in BINARY.items()},
    **{
        f"__r{name}__": _matching(
            lambda ctx, left, right, symbol=symbol: binary(ctx, symbol, right, left), f"__r{name}__"
        )
        for symbol, (_, _, name) in BINARY.items()
    },
    **{method: _unary_rule(symbol) for symbol, (_, method) in UNARY.items()},
}
for _name in ("getitem", "setitem", "delitem", "contains"):
    evaluates_call(getattr(operator, _name))(DUNDERS[f"__{_name}__"])
evaluates_call(operator.truth)(DUNDERS["__bool__"])


def initialize(
    ctx: Context, value: VariableTracker, args: Sequence[VariableTracker], named: dict[str, Any]
) -> None:
    """``list.__init__(self, items)`` and its relatives."""
    if isinstance(value, DictVariable):
        if value.key.cls is collections.defaultdict and args:
            raise GraphBreak("BD019", "a subclass of defaultdict with a factory")
        value.call_method(ctx, "update", list(args), named)
    elif isinstance(value, ListVariable):
        value.replace(ctx, args[0].unpack(ctx) if args else ())
    elif isinstance(value, SetVariable) and args:
        ctx.effects.write(value.key, members_of(ctx, args[0]))


@protocol.is_less.implement
def _is_less(ctx: Context, left: VariableTracker, right: VariableTracker) -> bool:
    """``left < right`` as a Python bool."""
    return compare(ctx, "<", left, right).truth(ctx)


@protocol.is_alike.implement
def _is_alike(ctx: Context, left: VariableTracker, right: VariableTracker) -> bool:
    """``left is right or left == right``: how containers compare."""
    if isinstance(left, TextVariable) or isinstance(right, TextVariable):
        return is_equal(ctx, left, right)
    numbers = is_number(left) and is_number(right)  # whose identity may be unknown
    known = left is right or not numbers or (type(left) is type(right) is ConstantVariable)
    return (known and is_same(ctx, left, right)) or is_equal(ctx, left, right)


def is_equal(ctx: Context, left: VariableTracker, right: VariableTracker) -> bool:
    """``left == right`` as a Python bool."""
    return compare(ctx, "==", left, right).truth(ctx)


@protocol.call_special.implement
def _call_special(
    ctx: Context, owner: VariableTracker, name: str, args: Sequence[VariableTracker]
) -> VariableTracker:
    """``owner.__getitem__(key)`` and its relatives, by the capability of the tracker."""
    return DUNDERS[name](ctx, owner, *args) or NONE
