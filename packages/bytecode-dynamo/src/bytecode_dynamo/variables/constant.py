"""Immutable plain values: numbers, strings, dtypes, enum members; and symbolic sizes."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import operator
import sys
import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from bytecode_dynamo.class_flags import HEAP_TYPE
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import FUNCTIONS
from bytecode_dynamo.guards.computed_source import computed
from bytecode_dynamo.guards.records import Answer, GuardKind, same_constant
from bytecode_dynamo.guards.shape_program import python_function
from bytecode_dynamo.guards.source import AttrSource, ConstSource, Source
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.dynamic_shapes import number_symbol
from bytecode_dynamo.state.protocol import (
    class_attribute,
    decide,
    fold_call,
    new_iterator,
    new_list,
    new_value,
    raise_error,
    raise_no_attribute,
    wrap_contents,
    wrap_value,
)
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, BoundRuleVariable, Kwargs, ValueVariable, Variable
from .wrap import by_identity, tracker_for

NUMBERS = (int, float, bool, complex)
BY_VALUE = (*NUMBERS, str, bytes)
BY_IDENTITY = (
    type(None), type(Ellipsis), type(NotImplemented), torch.dtype, torch.layout,
    torch.memory_format, torch.qscheme,
)  # fmt: skip
BY_TEXT = (
    decimal.Decimal, datetime.date, datetime.datetime, datetime.time, datetime.timedelta,
    datetime.timezone,
)  # fmt: skip
CONSTANT_TYPES = frozenset({*BY_VALUE, *BY_TEXT, *BY_IDENTITY, torch.device, types.CodeType})


# torch has imported it if it is installed
SCALAR: Any = getattr(sys.modules.get("numpy"), "generic", enum.Enum)


def is_constant_value(value: object) -> bool:
    """Whether a value is tracked as a constant."""
    return type(value) in CONSTANT_TYPES or isinstance(value, (enum.Enum, SCALAR))


@dataclass(frozen=True, slots=True, eq=False)
class ConstantVariable(ValueVariable):
    """A known immutable value."""

    @property
    def is_none(self) -> bool:
        return self.value is None

    def describe(self) -> str:
        return repr(self.value)

    def as_proxy(self, ctx: Context) -> Any:
        value = self.value
        if isinstance(value, SCALAR) and not isinstance(value, enum.Enum):
            value = value.item()
            if type(value) is bool or (
                isinstance(value, complex) and not isinstance(self.value, complex)
            ):
                raise GraphBreak(
                    "BD005",
                    f"{self.describe()}, which torch reads as a float where it is an operand",
                )
        kinds: Any = (int, float, complex, str)
        for kind in kinds:  # a graph's text has no subclasses of them
            if isinstance(value, kind) and type(value) not in (kind, bool):
                return kind.__new__(kind, value)
        return value

    def truth(self, ctx: Context) -> bool:
        try:
            return bool(self.value)
        except TypeError as error:  # NotImplemented, from CPython 3.14 on
            return raise_error(ctx, TypeError, str(error))

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if isinstance(self.value, enum.Enum):
            return _enum_attribute(ctx, self.value, name)
        found = getattr(self.value, name, _ABSENT)
        if found is _ABSENT:
            return raise_no_attribute(ctx, type(self.value), name)
        if isinstance(found, (types.BuiltinMethodType, types.MethodWrapperType)):
            return ConstantMethodVariable(self, name)
        return new_value(ctx, found)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        method = getattr(type(self.value), name, None)
        if isinstance(self.value, enum.Enum) and isinstance(method, types.FunctionType):
            return self.get_attr(ctx, name).call(ctx, args, kwargs)
        if not hasattr(self.value, name):
            return raise_no_attribute(ctx, type(self.value), name)
        if name in _OF_A_PLACE and getattr(self.value, "tzinfo", None) is None:
            raise GraphBreak(
                "BD003",
                f"{name}() of a time without a time zone",
                "give the time a time zone: without one the result depends on the "
                "machine's settings",
            )
        rule = FUNCTIONS.find(method) if isinstance(method, types.MethodDescriptorType) else None
        if rule is not None:
            return rule(ctx, self, *args, **kwargs)
        if name == "join" and type(self.value) in (str, bytes) and len(args) == 1:
            if not hasattr(args[0].python_type(), "__iter__") and not hasattr(
                args[0].python_type(), "__getitem__"
            ):
                return raise_error(ctx, TypeError, "can only join an iterable")
            args = [new_list(ctx, args[0].unpack(ctx))]
        return fold_call(ctx, getattr(self.value, name), args, kwargs)

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        if isinstance(self.value, enum.Enum) and callable(self.value):
            return class_attribute(ctx, self, type(self.value), "__call__").call(ctx, args, kwargs)
        if not callable(self.value):
            return raise_error(
                ctx, TypeError, f"{type(self.value).__name__!r} object is not callable"
            )
        return Variable.call(self, ctx, args, kwargs)

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        return fold_call(ctx, lambda value, index: value[index], [self, key])

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        return fold_call(ctx, lambda value, part: part in value, [self, item]).truth(ctx)

    def length(self, ctx: Context) -> VariableTracker:
        return fold_call(ctx, len, [self])

    def iterate(self, ctx: Context) -> VariableTracker:
        if isinstance(self.value, enum.Flag):
            return self.get_attr(ctx, "__iter__").call(ctx, [], {})
        if not isinstance(self.value, (str, bytes, tuple)):
            return raise_error(
                ctx, TypeError, f"{type(self.value).__name__!r} object is not iterable"
            )
        return new_iterator(ctx, [new_value(ctx, part) for part in self.value], self)


_ABSENT = object()
_OF_A_PLACE = ("timestamp", "astimezone")  # the answers depend on the time zone


def _enum_attribute(ctx: Context, member: enum.Enum, name: str) -> VariableTracker:
    home = next((base for base in type(member).__mro__ if name in base.__dict__), None)
    if name in ("_value_", "_name_") or (name in ("value", "name") and home is enum.Enum):
        held = f"_{name.strip('_')}_"
        return wrap_value(ctx, getattr(member, held), AttrSource(ConstSource(member), held))
    if home in (int, float, str) and isinstance(home.__dict__[name], types.GetSetDescriptorType):
        return new_value(ctx, getattr(member, name))
    descriptor = home is not None and hasattr(type(home.__dict__[name]), "__set__")
    if name in vars(member) and not descriptor:
        return wrap_value(ctx, vars(member)[name], AttrSource(ConstSource(member), name))
    if not descriptor:
        ctx.guards.require(ConstSource(member), GuardKind.NO_ATTR, name)
    return class_attribute(ctx, ConstantVariable(member), type(member), name)


@dataclass(frozen=True, slots=True, eq=False)
class ConstantMethodVariable(Variable):
    """A method of a constant, such as ``", ".join``."""

    base: ConstantVariable
    name: str

    def python_type(self) -> type:
        return types.BuiltinMethodType

    def as_constant(self, ctx: Context) -> Any:
        return getattr(self.base.value, self.name)

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return self.base.call_method(ctx, self.name, args, kwargs)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.load_const(getattr(self.base.value, self.name))


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicVariable(Variable):
    """A SymInt, SymFloat or SymBool. If Python needs the number itself, a guard specialises it."""

    value: Any

    def python_type(self) -> type:
        return self.value.node.pytype

    def describe(self) -> str:
        return f"symbolic {self.python_type().__name__} {self.value}"

    def as_constant(self, ctx: Context) -> Any:
        return decide(ctx, lambda: self.python_type()(self.value), self.describe())

    def as_proxy(self, ctx: Context) -> Any:
        return ctx.graph.size(self.value)

    def as_fake(self, ctx: Context) -> Any:
        return self.value

    def hash_key(self, ctx: Context) -> Hashable:
        return self.as_constant(ctx)

    def truth(self, ctx: Context) -> bool:
        return decide(ctx, lambda: bool(self.value), self.describe())

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        return ConstantVariable(self.as_constant(ctx)).get_attr(ctx, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        return ConstantVariable(self.as_constant(ctx)).call_method(ctx, name, args, kwargs)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.load_size(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class FloatVariable(SymbolicVariable):
    """A float that changes between calls, or a result of Python arithmetic on one, computed from
    ``origin``.
    """

    origin: Source | None = None

    def as_constant(self, ctx: Context) -> float:
        assert self.origin is not None
        value = ctx.env.hint_of(self.value.node.expr)
        ctx.guards.require(self.origin, GuardKind.EQUALS, value)
        return value


def computed_number(
    ctx: Context, function: Any, operands: list[VariableTracker]
) -> VariableTracker:
    """The result of a Python function of a changing float: computed by the same function before the
    graph.
    """
    if any(
        isinstance(operand, ConstantVariable) and isinstance(operand.value, SCALAR)
        for operand in operands
    ):
        return fold_call(ctx, function, operands)  # NumPy's number or bool
    origins = [_origin(ctx, operand) for operand in operands]
    origin = computed(function, [one for one in origins if one is not None])
    if origin is None or None in origins:
        return fold_call(ctx, function, operands)
    try:
        value = function(*(_example(ctx, operand) for operand in operands))
    except Exception:
        return fold_call(ctx, function, operands)
    if type(value) is float and math.isfinite(value):
        number = ctx.env.create_float(value)
        if function not in _CLOSED:
            ctx.guards.require(origin, GuardKind.FINITE, True)
    else:
        number = (
            number_symbol(ctx, value, origin.name)
            if type(value) is int and value not in (0, 1)
            else None
        )
        if number is None:
            return fold_call(ctx, function, operands)
    ctx.bind_symbol(number, origin, value)
    if type(value) is float:
        return FloatVariable(number, origin=origin)
    return SymbolicVariable(number)


# float results for float arguments
_CLOSED = (operator.add, operator.sub, operator.mul, operator.neg, operator.pos, abs)


def _origin(ctx: Context, value: VariableTracker) -> Source | None:
    """The source of a number; None if it depends on data."""
    if isinstance(value, FloatVariable):
        return value.origin
    if not isinstance(value, SymbolicVariable):
        return ConstSource(value.as_constant(ctx))
    expr = value.value.node.expr
    sources = {
        symbol: ctx.symbol_sources.get(symbol) for symbol in sorted(expr.free_symbols, key=str)
    }
    if None in sources.values():
        return None
    return (
        sources[expr]
        if expr.is_Symbol
        else computed(python_function(expr, list(sources)), [*sources.values()])  # pyright: ignore
    )


def _example(ctx: Context, value: VariableTracker) -> Any:
    if not isinstance(value, SymbolicVariable):
        return value.as_constant(ctx)
    return value.python_type()(ctx.env.hint_of(value.value.node.expr))


@tracker_for(*BY_VALUE)
def wrap_by_value(ctx: Context, value: Any, source: Source) -> VariableTracker:
    if type(value).__flags__ & HEAP_TYPE:
        if isinstance(value, enum.Enum):
            return wrap_by_identity(ctx, value, source)
        return _wrap_extended(ctx, value, source)
    symbolic = ctx.dynamic.number(ctx, value, source)
    if symbolic is not None:
        ctx.guards.note(source, GuardKind.EQUALS, value)
        if type(value) is float:
            return FloatVariable(symbolic, source=source, origin=source)
        return SymbolicVariable(symbolic, source=source)
    ctx.guards.require(source, GuardKind.EQUALS, value)
    return ConstantVariable(value, source=source)


def _wrap_extended(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A number or text of the program's own class: an object with contents, whose own methods are
    not called.
    """
    base = next(base for base in type(value).__mro__ if base in _PLAIN)
    plain = _PLAIN[base]
    contents = plain(value)
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    same = Answer("{}", plain, contents, same=same_constant)
    ctx.guards.require(source, GuardKind.CUSTOM, same)
    return wrap_contents(ctx, value, source, ConstantVariable(contents), base)


_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__int__, float: float.__float__, str: str.__str__, bytes: bytes.__bytes__,
    complex: complex.__complex__,
}  # fmt: skip


def constant_by_text(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A constant, guarded by its class and text."""
    cls, text = type(value), repr(value)
    same = Answer("{}", lambda now: (type(now), repr(now)), (cls, text))
    ctx.guards.require(source, GuardKind.CUSTOM, same)
    return ConstantVariable(value, source=source)


wrap_by_identity = by_identity(ConstantVariable)
tracker_for(*BY_IDENTITY, enum.Enum, types.CodeType)(wrap_by_identity)


@tracker_for(torch.device)
def wrap_device(ctx: Context, value: Any, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.EQUALS, value)
    return ConstantVariable(value, source=source)


@dataclass(frozen=True, slots=True, eq=False)
class SliceVariable(Variable):
    """``slice(start, stop, step)``, which may hold symbolic sizes or tensors."""

    parts: tuple[VariableTracker, VariableTracker, VariableTracker]

    def python_type(self) -> type:
        return slice

    def as_constant(self, ctx: Context) -> Any:
        return slice(*(part.as_constant(ctx) for part in self.parts))

    def as_proxy(self, ctx: Context) -> Any:
        return slice(*(part.as_proxy(ctx) for part in self.parts))

    def as_fake(self, ctx: Context) -> Any:
        return slice(*(part.as_fake(ctx) for part in self.parts))

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        if name == "indices":
            return BoundRuleVariable(self, name)
        if not hasattr(slice, name):
            return raise_no_attribute(ctx, slice, name)
        raise GraphBreak("BD014", f"attribute {name!r} of a slice")

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        return fold_call(ctx, getattr(self.as_constant(ctx), name), args, kwargs)

    def reconstruct(self, gen: ValueBuilder) -> None:
        for part in self.parts:
            gen(part)
        gen.emitter.build_slice(3)


@tracker_for(slice)
def wrap_slice(ctx: Context, value: slice, source: Source) -> VariableTracker:
    from_attribute = _attribute_of(ctx, value, source)
    ctx.guards.require(source, GuardKind.TYPE_IS, slice)
    return SliceVariable(
        (from_attribute("start"), from_attribute("stop"), from_attribute("step")), source=source
    )


def _attribute_of(ctx: Context, value: Any, source: Source) -> Callable[[str], VariableTracker]:
    """A function that wraps the attributes of an existing object."""
    return lambda name: wrap_value(ctx, getattr(value, name), AttrSource(source, name))


NONE = ConstantVariable(None)
