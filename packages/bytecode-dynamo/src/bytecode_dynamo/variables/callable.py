"""Callables written in C, namespaces of functions, and numbers such as ``id(x)``."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from bytecode_dynamo.bytecode import UNBOUND
from bytecode_dynamo.class_flags import native_base
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import AttrSource, ConstSource, Source
from bytecode_dynamo.polyfills import library as polyfills
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING, Identity
from bytecode_dynamo.state.protocol import (
    call_known,
    call_polyfill,
    fold_call,
    instantiate,
    new_value,
    raise_no_attribute,
    wrap_value,
)
from bytecode_dynamo.state.tracker import VariableTracker

from .attribute import find_in_class
from .base import Args, BoundRuleVariable, Kwargs, ValueVariable, Variable
from .function import BoundMethodVariable, FunctionVariable
from .wrap import by_identity, tracker_for


@dataclass(frozen=True, slots=True, eq=False)
class KnownObjectVariable(ValueVariable):
    """An object whose identity is guarded."""

    def describe(self) -> str:
        module = getattr(self.value, "__module__", None)
        name = getattr(self.value, "__qualname__", None) or repr(self.value)
        return f"{module}.{name}" if module else str(name)

    def truth(self, ctx: Context) -> bool:
        return True


_ABSENT = object()
DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)


@dataclass(frozen=True, slots=True, eq=False)
class CallableVariable(KnownObjectVariable):
    """A built-in or torch function; the tables in ``builtins`` have its rule."""

    pinned: ClassVar[bool] = True

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return call_known(ctx, self.value, args, kwargs)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name != "__get__" or kwargs or len(args) not in (1, 2):
            return KnownObjectVariable.call_method(self, ctx, name, args, kwargs)
        if args[0].is_none or not issubclass(args[0].python_type(), self.value.__objclass__):
            raise GraphBreak("BD007", f"{name} of {self.describe()}")
        return BoundMethodVariable(self, args[0])

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        found = getattr(self.value, name, _ABSENT)
        if found is _ABSENT:
            return raise_no_attribute(ctx, type(self.value), name)
        if isinstance(self.value, types.GetSetDescriptorType) and name == "__get__":
            return CallableVariable(found)
        if isinstance(self.value, DESCRIPTORS) and name == "__get__":
            return BoundRuleVariable(self, name)
        return wrap_value(ctx, found, AttrSource(ConstSource(self.value), name))


def is_of_typing(function: types.FunctionType) -> bool:
    return function.__module__ in ("typing", "typing_extensions")


CALLABLE_TYPES = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
)  # fmt: skip


@tracker_for(*CALLABLE_TYPES)
def wrap_builtin(ctx: Context, value: Any, source: Source) -> VariableTracker:
    owner = getattr(value, "__self__", None)
    bound = isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType))
    if (
        bound
        and not isinstance(owner, (types.ModuleType, type, type(None)))
        and not _is_pybind(owner)
    ):
        _require_method(ctx, value, source)
        base = wrap_value(ctx, owner, AttrSource(source, "__self__"))
        overridden = _overridden(value, owner)
        if overridden is not None:
            return BoundMethodVariable(CallableVariable(overridden), base, source=source)
        native = native_base(type(owner))
        if native not in (object, type(owner)):
            return BoundMethodVariable(
                CallableVariable(getattr(native, value.__name__)), base, source=source
            )
        return BoundRuleVariable(base, value.__name__, source=source)
    ctx.guards.require(source, GuardKind.IDENTITY, value)
    return CallableVariable(value, source=source)


def _require_method(ctx: Context, value: Any, source: Source) -> None:
    """Guard on which method is bound: each access makes a new object, so identity says nothing."""
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    ctx.guards.require(AttrSource(source, "__name__"), GuardKind.EQUALS, value.__name__)
    if isinstance(value, types.MethodWrapperType):
        place = AttrSource(source, "__objclass__")
        ctx.guards.require(place, GuardKind.IDENTITY, value.__objclass__)


def _overridden(value: Any, owner: object) -> Any:
    """The descriptor that a bound method was made of, where the owner's class has another attribute
    of that name: ``super().__setattr__``, ``object.__eq__.__get__(owner)``. None otherwise.
    """
    cls, name = type(owner), value.__name__
    places = [value.__objclass__] if isinstance(value, types.MethodWrapperType) else cls.__mro__
    made_of = next(
        (found for place in places if type(found := vars(place).get(name)) in DESCRIPTORS), None
    )
    return None if made_of is find_in_class(cls, name)[1] else made_of


@tracker_for(torch.jit.ScriptFunction)
def wrap_script(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A scripted function is tracked as its Python original if torch keeps it."""
    ctx.guards.require(source, GuardKind.IDENTITY, value)
    original = getattr(value, "_torchdynamo_inline", None)
    if isinstance(original, types.FunctionType):
        return wrap_value(ctx, original, ConstSource(original))
    return CallableVariable(value, source=source)


def _is_pybind(owner: object) -> bool:
    """Whether ``__self__`` is pybind11's record of a signature."""
    return type(owner).__name__.startswith(("pybind11_", "PyCapsule"))


@tracker_for(type(UNBOUND))
def wrap_unbound(ctx: Context, value: Any, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.IDENTITY, value)
    return KnownObjectVariable(value)


_TYPING: Any = typing
PURE = (re.Pattern, re.Match)


@dataclass(frozen=True, slots=True, eq=False)
class NamespaceVariable(KnownObjectVariable):
    """An object whose attributes are constants or callables: ``torch.ops.aten``,
    ``torch.finfo(...)``.
    """

    def as_proxy(self, ctx: Context) -> Any:
        raise GraphBreak(
            "BD002",
            f"{self.describe()} can't be an argument of a torch call",
            "pass a tensor, a number, or a list or dict of them",
        )

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        found = getattr(self.value, name, _ABSENT)
        if found is _ABSENT:
            return raise_no_attribute(ctx, type(self.value), name)
        if isinstance(self.value, PURE) and callable(found):
            return BoundRuleVariable(self, name)
        return new_value(ctx, found)

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        origin = typing.get_origin(self.value)
        if not isinstance(origin, type):
            return KnownObjectVariable.call(self, ctx, args, kwargs)
        made = instantiate(ctx, origin, args, kwargs)
        if isinstance(self.value, _TYPING._GenericAlias) and origin.__dictoffset__:
            made.set_attr(ctx, "__orig_class__", self)
        return made

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if (
            isinstance(self.value, re.Pattern)
            and name == "sub"
            and isinstance(args[0], FunctionVariable)
        ):
            return call_polyfill(ctx, polyfills.substitute, [self, *args], kwargs)
        if isinstance(self.value, PURE) and hasattr(self.value, name):
            return fold_call(ctx, getattr(self.value, name), args, kwargs)
        if isinstance(self.value, property) and name in ("getter", "setter", "deleter"):
            return call_known(ctx, getattr(property, name), [self, *args], kwargs)
        if isinstance(self.value, property) and name in ("__get__", "__set__"):
            return call_known(ctx, getattr(self.value, name), args, kwargs)
        if isinstance(
            getattr(self.value, name, None), (types.BuiltinMethodType, types.MethodWrapperType)
        ):
            raise GraphBreak("BD002", f"call of {self.describe()}.{name}")
        return KnownObjectVariable.call_method(self, ctx, name, args, kwargs)

    def iterate(self, ctx: Context) -> VariableTracker:
        if not isinstance(self.value, PURE):
            return KnownObjectVariable.iterate(self, ctx)
        return fold_call(ctx, list, [self]).iterate(ctx)

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        return fold_call(ctx, lambda value, item: value[item], [self, key])

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        return fold_call(ctx, lambda value, part: part in value, [self, item]).truth(ctx)

    def length(self, ctx: Context) -> VariableTracker:
        return fold_call(ctx, len, [self])


tracker_for(
    torch._ops._OpNamespace, torch._ops._Ops, torch.finfo, torch.iinfo, types.GenericAlias,
    type(int | str),
    _TYPING._BaseGenericAlias, typing._SpecialForm, typing.TypeVar,
    inspect.Signature, inspect.Parameter, torch._C._SDPBackend,
    property, staticmethod, classmethod, re.Pattern, re.Match,
)(by_identity(NamespaceVariable))  # fmt: skip  # pyright: ignore


@dataclass(frozen=True, slots=True, eq=False)
class NumberOfVariable(Variable):
    """An opaque number: ``id(value)``, or the current thread's number."""

    function: Callable[..., int]
    args: tuple[VariableTracker, ...] = ()

    def python_type(self) -> type:
        return int

    def identity(self) -> object:
        return self

    def hash_key(self, ctx: Context) -> Hashable:
        return (self.function, *map(_identity_key, self.args))

    def hash_among(self, ctx: Context, keys: Collection[Hashable]) -> Hashable:
        """The key among others; among plain numbers it is the object's guarded number."""
        hashed = self.hash_key(ctx)
        if hashed in keys or not self.args or all(type(key) is not int for key in keys):
            return hashed
        (stands_for,) = self.args
        held = stands_for.identity()
        known = (
            held.value
            if isinstance(held, Identity)
            else ctx.examples.get(id(getattr(stands_for, "fake", None)), MISSING)
        )
        if known is MISSING or stands_for.source is None:
            return hashed
        ctx.guards.require(stands_for.source, GuardKind.IDENTITY, known)
        return id(known) if id(known) in keys else hashed

    def truth(self, ctx: Context) -> bool:
        return True

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(self.function, *self.args)


def _identity_key(value: VariableTracker) -> Hashable:
    held = value.identity()
    return id(held) if not isinstance(held, (int, float, str)) else (type(held), held)


@protocol.wrap_callable.implement
def _wrap_callable(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A function written in C."""
    if isinstance(value, types.FunctionType):
        return wrap_value(ctx, value, source)
    return CallableVariable(value)
