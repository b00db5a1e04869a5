"""Classes, built-in functions, torch functions, ``super()``, and methods that trackers implement
themselves.
"""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from bytecode_dynamo.bytecode import UNBOUND
from bytecode_dynamo.class_flags import IMMUTABLE, native_base
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import ABSENT, GuardKind
from bytecode_dynamo.guards.source import AttrSource, ClassDictSource, ConstSource, Source
from bytecode_dynamo.polyfills import library as polyfills
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import DELETED, MISSING, Identity
from bytecode_dynamo.state.protocol import (
    call_known,
    call_polyfill,
    fold_call,
    instantiate,
    new_class,
    new_dict,
    new_iterator,
    new_list,
    new_value,
    raise_error,
    wrap_callable,
    wrap_value,
)
from bytecode_dynamo.state.requirements import (
    class_identity,
    enum_members,
    require_class_attribute,
    require_order,
    written_in_class,
)
from bytecode_dynamo.state.tracker import VariableTracker

from .attribute import bind, class_source, find_in_class, find_special
from .base import Args, BoundRuleVariable, Kwargs, LazyVariable, Variable
from .constant import ConstantVariable
from .function import BoundMethodVariable, FunctionVariable
from .proxy import ProxyVariable
from .special_results import accepted
from .wrap import tracker_for


@dataclass(frozen=True, slots=True, eq=False)
class KnownObjectVariable(Variable):
    """An object that is pinned by its identity."""

    always_rebuilt: ClassVar[bool] = True
    value: Any

    def python_type(self) -> type:
        return type(self.value)

    def describe(self) -> str:
        module = getattr(self.value, "__module__", None)
        name = getattr(self.value, "__qualname__", None) or repr(self.value)
        return f"{module}.{name}" if module else str(name)

    def identity(self) -> object:
        return self.value

    def as_constant(self, ctx: Context) -> Any:
        return self.value

    def as_proxy(self, ctx: Context) -> Any:
        return self.value

    def hash_key(self, ctx: Context) -> Hashable:
        return self.value

    def truth(self, ctx: Context) -> bool:
        return True

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.load_const(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class CallableVariable(KnownObjectVariable):
    """A built-in or torch function; what a call does is looked up in the tables of ``builtins``."""

    pinned: ClassVar[bool] = True

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return call_known(ctx, self.value, args, kwargs)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        found = getattr(self.value, name, _ABSENT)
        if found is _ABSENT:
            return raise_error(
                ctx,
                AttributeError,
                f"{type(self.value).__name__!r} object has no attribute {name!r}",
            )
        if isinstance(self.value, types.GetSetDescriptorType) and name == "__get__":
            return CallableVariable(found)
        return wrap_value(ctx, found, AttrSource(ConstSource(self.value), name))


_ABSENT = object()
_OF_CLASSES = ("__name__", "__qualname__", "__module__", "__doc__", "__mro__", "__bases__")


# what torch takes classes of numbers for
_DTYPES = (
    (int, torch.int64),
    (float, torch.float64),
    (bool, torch.bool),
    (complex, torch.complex128),
)


@dataclass(frozen=True, slots=True, eq=False)
class ClassVariable(KnownObjectVariable):
    """A class."""

    pinned: ClassVar[bool] = True

    def as_proxy(self, ctx: Context) -> Any:
        return next((dtype for cls, dtype in _DTYPES if cls is self.value), self.value)

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return instantiate(ctx, self.value, args, kwargs)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        cls: type = self.value
        written = written_in_class(ctx, cls, name)
        if written is not None:
            return written if not isinstance(written, BoundMethodVariable) else written.function
        if name in _OF_CLASSES:
            found = getattr(cls, name)
            if name in ("__mro__", "__bases__"):
                require_order(ctx, cls)
            elif not cls.__flags__ & IMMUTABLE:
                ctx.guards.require(
                    ConstSource(cls), GuardKind.CUSTOM, lambda now: getattr(now, name) == found
                )
            return new_value(ctx, found)
        if name == "__dict__":
            return self._namespace(ctx, cls)
        index, found = find_in_class(cls, name)
        if index >= 0:
            return self._bind(ctx, found, class_source(ctx, cls, index, name), name)
        return self._from_metaclass(ctx, name)

    def _namespace(self, ctx: Context, cls: type) -> VariableTracker:
        """``cls.__dict__``: its names are guarded, values when they are read."""
        names = tuple(cls.__dict__)
        ctx.guards.require(
            ConstSource(cls), GuardKind.CUSTOM, lambda now: tuple(now.__dict__) == names
        )
        pairs = [(ConstantVariable(name), self._held(ctx, cls, name)) for name in names]
        return ProxyVariable(new_dict(ctx, pairs))

    def _held(self, ctx: Context, cls: type, name: str) -> VariableTracker:
        return written_in_class(ctx, cls, name) or LazyVariable(
            cls.__dict__[name], source=class_source(ctx, cls, 0, name)
        )

    def _from_metaclass(self, ctx: Context, name: str) -> VariableTracker:
        meta = type(self.value)
        index, found = find_special(ctx, meta, name)
        if index >= 0:
            if not self.value.__flags__ & IMMUTABLE:
                require_class_attribute(ctx, self.value, name)
            return bind(ctx, self, meta, found, class_source(ctx, meta, index, name), name)
        require_class_attribute(ctx, self.value, name)
        index, found = find_special(ctx, meta, "__getattr__")
        if isinstance(found, types.FunctionType):
            return wrap_value(ctx, found, class_source(ctx, meta, index, "__getattr__")).call(
                ctx, [self, ConstantVariable(name)], {}
            )
        return raise_error(
            ctx, AttributeError, f"type object {self.value.__name__!r} has no attribute {name!r}"
        )

    def _bind(self, ctx: Context, found: Any, source: Source, name: str) -> VariableTracker:
        if isinstance(found, staticmethod):
            return wrap_value(ctx, found.__func__, AttrSource(source, "__func__"))
        if isinstance(found, classmethod):
            return BoundMethodVariable(
                wrap_value(ctx, found.__func__, AttrSource(source, "__func__")), self
            )
        if isinstance(
            found,
            (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType),
        ):
            return wrap_callable(ctx, getattr(self.value, name), source)
        if isinstance(found, types.ClassMethodDescriptorType):
            return wrap_callable(ctx, getattr(self.value, name), source)
        if isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            value = getattr(self.value, name)
            return CallableVariable(value) if value is found else new_value(ctx, value)
        made = wrap_value(ctx, found, source)
        if isinstance(found, types.FunctionType) or not isinstance(
            find_in_class(type(found), "__get__")[1], types.FunctionType
        ):
            return made
        return made.call_method(ctx, "__get__", [ConstantVariable(None), self], {})

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        setter = find_special(ctx, type(self.value), "__setattr__")[1]
        own = (
            isinstance(setter, types.FunctionType)
            or find_special(ctx, type(self.value), name)[0] >= 0
        )
        if own or name.startswith("__") or self.value.__flags__ & IMMUTABLE:
            raise GraphBreak("BD020", f"assignment to {name!r} of class {self.value.__name__}")
        ctx.written_in_classes.add((self.value, name))
        ctx.effects.write((class_identity(ctx, self.value), name), value)

    def del_attr(self, ctx: Context, name: str) -> None:
        if (
            written_in_class(ctx, self.value, name, own=True) is None
            and name not in self.value.__dict__
        ):
            raise_error(
                ctx,
                AttributeError,
                f"type object {self.value.__name__!r} has no attribute {name!r}",
            )
        self.set_attr(ctx, name, DELETED)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "mro" and not args:
            return new_list(ctx, self.get_attr(ctx, "__mro__").unpack(ctx))
        if name == "__subclasses__" and not args:
            found = self.value.__subclasses__()
            ctx.guards.require(
                ConstSource(self.value), GuardKind.CUSTOM, lambda cls: cls.__subclasses__() == found
            )
            return new_list(ctx, [new_class(ctx, cls) for cls in found])
        return self.get_attr(ctx, name).call(ctx, args, kwargs)

    def of_metaclass(self, ctx: Context, name: str, args: Args) -> VariableTracker | None:
        """What a special method of a metaclass written in Python gives."""
        if isinstance(self.value, enum.EnumMeta):
            return None
        if not isinstance(find_special(ctx, type(self.value), name)[1], types.FunctionType):
            return None
        return accepted(name, self._from_metaclass(ctx, name).call(ctx, args, {}))

    def truth(self, ctx: Context) -> bool:
        made = self.of_metaclass(ctx, "__bool__", []) or self.of_metaclass(ctx, "__len__", [])
        return True if made is None else made.truth(ctx)

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        made = self.of_metaclass(ctx, "__getitem__", [key])
        if made is not None:
            return made
        if find_special(ctx, type(self.value), "__getitem__")[0] >= 0:
            if isinstance(self.value, enum.EnumMeta):
                enum_members(ctx, self.value)
            return fold_call(ctx, lambda cls, item: cls[item], [self, key], {})
        found = require_class_attribute(ctx, self.value, "__class_getitem__")
        if (
            isinstance(found, classmethod)
            and isinstance(found.__func__, types.FunctionType)
            and not _of_typing(found.__func__)
        ):
            return self.get_attr(ctx, "__class_getitem__").call(ctx, [key], {})
        if found is not ABSENT:
            return wrap_value(
                ctx, self.value[key.as_constant(ctx)], ConstSource(self.value[key.as_constant(ctx)])
            )
        return raise_error(ctx, TypeError, f"type {self.value.__name__!r} is not subscriptable")

    def iterate(self, ctx: Context) -> VariableTracker:
        made = self.of_metaclass(ctx, "__iter__", [])
        if made is not None:
            return made
        return new_iterator(
            ctx, [ConstantVariable(member) for member in enum_members(ctx, self.value)]
        )

    def length(self, ctx: Context) -> VariableTracker:
        made = self.of_metaclass(ctx, "__len__", [])
        return ConstantVariable(len(enum_members(ctx, self.value))) if made is None else made

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        made = self.of_metaclass(ctx, "__contains__", [item])
        if made is not None:
            return made.truth(ctx)
        return item.as_constant(ctx) in enum_members(ctx, self.value)


def _of_typing(function: types.FunctionType) -> bool:
    return function.__module__ in ("typing", "typing_extensions")


@tracker_for(type)
def wrap_class(ctx: Context, value: type, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.IDENTITY, value)
    return ClassVariable(value, source=source)


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
        base = wrap_value(ctx, owner, AttrSource(source, "__self__"))
        native = native_base(type(owner))
        if native not in (object, type(owner)):
            return BoundMethodVariable(
                CallableVariable(getattr(native, value.__name__)), base, source=source
            )
        return BoundRuleVariable(base, value.__name__, source=source)
    ctx.guards.require(source, GuardKind.IDENTITY, value)
    return CallableVariable(value, source=source)


@tracker_for(torch.jit.ScriptFunction)
def wrap_script(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A scripted function is its Python original where torch keeps that."""
    ctx.guards.require(source, GuardKind.IDENTITY, value)
    original = getattr(value, "_torchdynamo_inline", None)
    if isinstance(original, types.FunctionType):
        return wrap_value(ctx, original, ConstSource(original))
    return CallableVariable(value, source=source)


def _is_pybind(owner: object) -> bool:
    """Functions made by pybind11 have a record of their signature as ``__self__``."""
    return type(owner).__name__.startswith(("pybind11_", "PyCapsule"))


@tracker_for(type(UNBOUND))
def wrap_unbound(ctx: Context, value: Any, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.IDENTITY, value)
    return KnownObjectVariable(value)


_TYPING: Any = typing
PURE = (re.Pattern, re.Match)


@tracker_for(
    torch._ops._OpNamespace, torch._ops._Ops, torch.finfo, torch.iinfo, types.GenericAlias,
    type(int | str),
    _TYPING._BaseGenericAlias, typing._SpecialForm, typing.TypeVar,
    inspect.Signature, inspect.Parameter, torch._C._SDPBackend,
    property, staticmethod, classmethod, re.Pattern, re.Match,
)  # fmt: skip  # pyright: ignore
def wrap_known_object(ctx: Context, value: Any, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.IDENTITY, value)
    return NamespaceVariable(value, source=source)


@dataclass(frozen=True, slots=True, eq=False)
class NamespaceVariable(KnownObjectVariable):
    """An object whose attributes are constants or callables: ``torch.ops.aten``,
    ``torch.finfo(...)``.
    """

    def as_proxy(self, ctx: Context) -> Any:
        raise GraphBreak("BD002", f"{self.describe()} can't be an argument of a torch call")

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        found = getattr(self.value, name, _ABSENT)
        if found is _ABSENT:
            return raise_error(
                ctx,
                AttributeError,
                f"{type(self.value).__name__!r} object has no attribute {name!r}",
            )
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
        return fold_call(ctx, list, [self], {}).iterate(ctx)

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        return fold_call(ctx, lambda value, item: value[item], [self, key], {})

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        return fold_call(ctx, lambda value, part: part in value, [self, item], {}).truth(ctx)

    def length(self, ctx: Context) -> VariableTracker:
        return fold_call(ctx, len, [self], {})


@dataclass(frozen=True, slots=True, eq=False)
class NumberOfVariable(Variable):
    """A number that only stands for something: ``id(value)``, or the number of this thread."""

    function: Callable[..., int]
    args: tuple[VariableTracker, ...] = ()

    def python_type(self) -> type:
        return int

    def identity(self) -> object:
        return self

    def hash_key(self, ctx: Context) -> Hashable:
        return (self.function, *map(_identity_key, self.args))

    def hash_among(self, ctx: Context, keys: Collection[Hashable]) -> Hashable:
        """The key among others; where some are plain numbers, one may be the number of this object,
        which a guard pins.
        """
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


@dataclass(frozen=True, slots=True, eq=False)
class SuperVariable(Variable):
    """``super(cls, owner)``."""

    cls: type
    owner: VariableTracker

    def python_type(self) -> type:
        return super

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        is_class = isinstance(self.owner, ClassVariable) and issubclass(self.owner.value, self.cls)
        actual: type = self.owner.value if is_class else self.owner.python_type()  # pyright: ignore
        order = actual.__mro__
        for index in range(order.index(self.cls) + 1, len(order)):
            require_class_attribute(ctx, order[index], name)
            if name in order[index].__dict__:
                return self._bind(ctx, actual, index, name, is_class)
        return raise_error(ctx, AttributeError, f"'super' object has no attribute {name!r}")

    def _bind(
        self, ctx: Context, actual: type, index: int, name: str, is_class: bool
    ) -> VariableTracker:
        base = actual.__mro__[index]
        found = base.__dict__[name]
        source = ClassDictSource(ConstSource(actual), index, name)
        if name == "__new__" and isinstance(found, staticmethod):
            return wrap_value(ctx, found.__func__, AttrSource(source, "__func__"))
        if isinstance(found, types.BuiltinFunctionType):
            return wrap_callable(ctx, found, source)
        if is_class and not isinstance(found, classmethod):
            return wrap_value(ctx, found, source)
        return bind(ctx, self.owner, actual, found, source, name)

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        self.get_attr(ctx, "__setattr__").call(ctx, [ConstantVariable(name), value], {})


@protocol.wrap_callable.implement
def _wrap_callable(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A function written in C."""
    if isinstance(value, types.FunctionType):
        return wrap_value(ctx, value, source)
    return CallableVariable(value)


@protocol.new_class.implement
def _new_class(ctx: Context, cls: type) -> VariableTracker:
    """A class that is pinned by other guards."""
    return ClassVariable(cls)
