"""Names and signatures as values: ``globals``, ``locals``, ``vars``, ``inspect.signature``."""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from typing import Any

from bytecode_dynamo.errors import GraphBreak, ObservedException
from bytecode_dynamo.function_table import evaluates_call, evaluates_each
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import DELETED, MISSING, Identity
from bytecode_dynamo.state.frame import GlobalNames
from bytecode_dynamo.state.protocol import (
    call_known,
    call_special,
    get_attribute,
    new_dict,
    new_list,
    new_value,
    raise_exception,
    wrap_value,
)
from bytecode_dynamo.state.requirements import globals_identity, require_no_global
from bytecode_dynamo.state.tracker import Args, Kwargs, VariableTracker
from bytecode_dynamo.variables.base import NullVariable, Variable, method_of_type, realize
from bytecode_dynamo.variables.constant import NONE, ConstantVariable, SymbolicVariable
from bytecode_dynamo.variables.function import BoundMethodVariable, CellVariable, FunctionVariable
from bytecode_dynamo.variables.sequence import TupleVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable, instance_dict

Value = VariableTracker


@dataclass(frozen=True, slots=True, eq=False)
class GlobalsVariable(Variable):
    """``globals()``, for reading and assigning existing variables."""

    names: GlobalNames

    def python_type(self) -> type:
        return dict

    def identity(self) -> object:
        return self.names.mapping

    def get_item(self, ctx: Context, key: Value) -> Value:
        mapping, name = self.names.mapping, key.as_constant(ctx)
        written = ctx.effects.read((globals_identity(ctx, mapping), name))
        if written is MISSING and name in mapping:
            return wrap_value(ctx, mapping[name], self.names.source(name))
        if written is MISSING:
            require_no_global(ctx, self.names, name)
        return raise_exception(ctx, KeyError, [key]) if written in (MISSING, DELETED) else written

    def del_item(self, ctx: Context, key: Value) -> None:
        self.get_item(ctx, key)
        ctx.effects.write(
            (globals_identity(ctx, self.names.mapping), key.as_constant(ctx)), DELETED
        )

    def set_item(self, ctx: Context, key: Value, value: Value) -> None:
        ctx.effects.write((globals_identity(ctx, self.names.mapping), key.as_constant(ctx)), value)

    def contains(self, ctx: Context, item: Value) -> bool:
        return self._get(ctx, item) is not None

    def _get(self, ctx: Context, key: Value) -> Value | None:
        try:
            return self.get_item(ctx, key)
        except ObservedException:
            return None

    def get_attr(self, ctx: Context, name: str) -> Value:
        return method_of_type(ctx, self, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "get":
            return self._get(ctx, args[0]) or (args[1] if len(args) > 1 else NONE)
        if name in ("__getitem__", "__setitem__", "__contains__"):
            return call_special(ctx, self, name, args)
        raise GraphBreak("BD007", f"globals().{name}")


@evaluates_each(eval, exec, compile, __import__)
def reflection(ctx: Context, function: Any, *args: Value, **kwargs: Value) -> None:
    name = function.__name__
    raise GraphBreak("BD002", f"call of {name}()", f"call {name}() outside the compiled region")


@evaluates_call(dir)
def dir_(ctx: Context, *values: Value) -> Value:
    if values:
        reflection(ctx, dir)
    return new_list(ctx, [ConstantVariable(name) for name in sorted(_local_values(ctx))])


@evaluates_call(locals)
def locals_(ctx: Context) -> Value:
    return new_dict(ctx, [(ConstantVariable(n), held) for n, held in _local_values(ctx).items()])


def _local_values(ctx: Context) -> dict[str, Value]:
    """The values of the frame's variables, by name, without those that only capture knows."""
    frame = ctx.frame
    assert frame is not None
    found: dict[str, Value] = {}
    for name in (*frame.code.varnames, *frame.code.cellvars, *frame.code.freevars):
        held = frame.slots.get(name)
        held = held.contents(ctx) if isinstance(held, CellVariable) else held
        if (
            held is not None
            and not isinstance(held, NullVariable)
            and (name == ".0" or name.isidentifier())
        ):
            found[name] = realize(ctx, held)
    return found


@evaluates_call(globals)
def globals_(ctx: Context) -> Value:
    assert ctx.frame is not None
    return GlobalsVariable(ctx.frame.names)


@evaluates_call(inspect.signature)
def signature(ctx: Context, function: Value) -> Value:
    bound = isinstance(function, BoundMethodVariable)
    inner = _unwrapped(ctx, function.function if bound else function)
    if not isinstance(inner, FunctionVariable) or inner.value is None:
        raise GraphBreak("BD002", f"signature of {function.describe()}")
    annotations = get_attribute(ctx, inner, "__annotations__").call_method(ctx, "values", [], {})
    for part in (
        *inner.defaults,
        *(value for _, value in inner.keyword_defaults),
        *annotations.unpack(ctx),
    ):
        _fix(ctx, part)
    return new_value(
        ctx, inspect.signature(types.MethodType(inner.value, ctx) if bound else inner.value)
    )


def _fix(ctx: Context, part: Value) -> None:
    """Guard a part of a signature, which has it as it is now, by its value."""
    value = realize(ctx, part)
    if isinstance(value, TupleVariable):
        for item in value.items:
            _fix(ctx, item)
    elif isinstance(value, (ConstantVariable, SymbolicVariable, UserObjectVariable)):
        value.as_constant(ctx)
    elif isinstance(value.identity(), Identity):
        raise GraphBreak("BD002", f"a signature with {value.describe()}, which may change")


def _unwrapped(ctx: Context, function: Value) -> Value:
    """The function whose signature one has: that which ``functools.wraps`` noted, if any."""
    while isinstance(function, FunctionVariable) and function.value and function.value.__dict__:
        if _has(ctx, function, "__signature__"):
            raise GraphBreak("BD002", f"signature of {function.describe()}, which was set")
        if not _has(ctx, function, "__wrapped__"):
            break
        function = get_attribute(ctx, function, "__wrapped__")
    return function


def _has(ctx: Context, function: Value, name: str) -> bool:
    return call_known(ctx, hasattr, [function, ConstantVariable(name)]).as_constant(ctx)


@evaluates_call(vars)
def vars_(ctx: Context, value: Value) -> Value:
    if isinstance(value, UserObjectVariable):
        return instance_dict(ctx, value)
    return get_attribute(ctx, value, "__dict__")


@protocol.globals_of.implement
def _globals_of(ctx: Context, function: FunctionVariable) -> VariableTracker:
    """``function.__globals__``."""
    return GlobalsVariable(ctx.names_of(function.globals))
