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
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from bytecode_dynamo import polyfills
from bytecode_dynamo.bytecode import UNBOUND
from bytecode_dynamo.class_flags import IMMUTABLE, native_base
from bytecode_dynamo.effects import DELETED, MISSING, Identity
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards import ABSENT, GuardKind
from bytecode_dynamo.source import AttrSource, ClassDictSource, ConstSource, Source

from .attribute import bind, class_source, find_in_class, find_special
from .base import Args, Kwargs, LazyVariable, VariableTracker
from .function import BoundMethodVariable, FunctionVariable
from .proxy import ProxyVariable
from .special_results import accepted
from .wrap import tracker_for

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context
    from bytecode_dynamo.value_builder import ValueBuilder


@dataclass(frozen=True, slots=True, eq=False)
class KnownObjectVariable(VariableTracker):
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

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return ctx.call_known(self.value, args, kwargs)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        found = getattr(self.value, name, _ABSENT)
        if found is _ABSENT:
            return ctx.raise_error(
                AttributeError, f"{type(self.value).__name__!r} object has no attribute {name!r}"
            )
        if isinstance(self.value, types.GetSetDescriptorType) and name == "__get__":
            return CallableVariable(found)
        return ctx.wrap(found, AttrSource(ConstSource(self.value), name))


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

    def as_proxy(self, ctx: Context) -> Any:
        return next((dtype for cls, dtype in _DTYPES if cls is self.value), self.value)

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return ctx.construct(self.value, args, kwargs)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        cls: type = self.value
        written = ctx.written_in_class(cls, name)
        if written is not None:
            return written if not isinstance(written, BoundMethodVariable) else written.function
        if name in _OF_CLASSES:
            found = getattr(cls, name)
            if name in ("__mro__", "__bases__"):
                ctx.require_order(cls)
            elif not cls.__flags__ & IMMUTABLE:
                ctx.guards.require(
                    ConstSource(cls), GuardKind.CUSTOM, lambda now: getattr(now, name) == found
                )
            return ctx.create(found)
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
        pairs = [(ctx.constant(name), self._held(ctx, cls, name)) for name in names]
        return ProxyVariable(ctx.create_dict(pairs))

    def _held(self, ctx: Context, cls: type, name: str) -> VariableTracker:
        return ctx.written_in_class(cls, name) or LazyVariable(
            cls.__dict__[name], source=class_source(ctx, cls, 0, name)
        )

    def _from_metaclass(self, ctx: Context, name: str) -> VariableTracker:
        meta = type(self.value)
        index, found = find_special(ctx, meta, name)
        if index >= 0:
            if not self.value.__flags__ & IMMUTABLE:
                ctx.require_class_attribute(self.value, name)
            return bind(ctx, self, meta, found, class_source(ctx, meta, index, name), name)
        ctx.require_class_attribute(self.value, name)
        index, found = find_special(ctx, meta, "__getattr__")
        if isinstance(found, types.FunctionType):
            return ctx.wrap(found, class_source(ctx, meta, index, "__getattr__")).call(
                ctx, [self, ctx.constant(name)], {}
            )
        return ctx.raise_error(
            AttributeError, f"type object {self.value.__name__!r} has no attribute {name!r}"
        )

    def _bind(self, ctx: Context, found: Any, source: Source, name: str) -> VariableTracker:
        if isinstance(found, staticmethod):
            return ctx.wrap(found.__func__, AttrSource(source, "__func__"))
        if isinstance(found, classmethod):
            return BoundMethodVariable(
                ctx.wrap(found.__func__, AttrSource(source, "__func__")), self
            )
        if isinstance(
            found,
            (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType),
        ):
            return ctx.wrap_callable(getattr(self.value, name), source)
        if isinstance(found, types.ClassMethodDescriptorType):
            return ctx.wrap_callable(getattr(self.value, name), source)
        if isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            value = getattr(self.value, name)
            return CallableVariable(value) if value is found else ctx.create(value)
        made = ctx.wrap(found, source)
        if isinstance(found, types.FunctionType) or not isinstance(
            find_in_class(type(found), "__get__")[1], types.FunctionType
        ):
            return made
        return made.call_method(ctx, "__get__", [ctx.constant(None), self], {})

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        setter = find_special(ctx, type(self.value), "__setattr__")[1]
        own = (
            isinstance(setter, types.FunctionType)
            or find_special(ctx, type(self.value), name)[0] >= 0
        )
        if own or name.startswith("__") or self.value.__flags__ & IMMUTABLE:
            raise GraphBreak("BD020", f"assignment to {name!r} of class {self.value.__name__}")
        ctx.written_in_classes.add((self.value, name))
        ctx.effects.write((ctx.class_identity(self.value), name), value)

    def del_attr(self, ctx: Context, name: str) -> None:
        if (
            ctx.written_in_class(self.value, name, own=True) is None
            and name not in self.value.__dict__
        ):
            ctx.raise_error(
                AttributeError, f"type object {self.value.__name__!r} has no attribute {name!r}"
            )
        self.set_attr(ctx, name, DELETED)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "mro" and not args:
            return ctx.create_list(self.get_attr(ctx, "__mro__").unpack(ctx))
        if name == "__subclasses__" and not args:
            found = self.value.__subclasses__()
            ctx.guards.require(
                ConstSource(self.value), GuardKind.CUSTOM, lambda cls: cls.__subclasses__() == found
            )
            return ctx.create_list([ctx.constant_class(cls) for cls in found])
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
                ctx.enum_members(self.value)
            return ctx.fold(lambda cls, item: cls[item], [self, key], {})
        found = ctx.require_class_attribute(self.value, "__class_getitem__")
        if (
            isinstance(found, classmethod)
            and isinstance(found.__func__, types.FunctionType)
            and not _of_typing(found.__func__)
        ):
            return self.get_attr(ctx, "__class_getitem__").call(ctx, [key], {})
        if found is not ABSENT:
            return ctx.wrap(
                self.value[key.as_constant(ctx)], ConstSource(self.value[key.as_constant(ctx)])
            )
        return ctx.raise_error(TypeError, f"type {self.value.__name__!r} is not subscriptable")

    def iterate(self, ctx: Context) -> VariableTracker:
        made = self.of_metaclass(ctx, "__iter__", [])
        if made is not None:
            return made
        return ctx.iterator([ctx.constant(member) for member in ctx.enum_members(self.value)])

    def length(self, ctx: Context) -> VariableTracker:
        made = self.of_metaclass(ctx, "__len__", [])
        return ctx.constant(len(ctx.enum_members(self.value))) if made is None else made

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        made = self.of_metaclass(ctx, "__contains__", [item])
        if made is not None:
            return made.truth(ctx)
        return item.as_constant(ctx) in ctx.enum_members(self.value)


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
        base = ctx.wrap(owner, AttrSource(source, "__self__"))
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
        return ctx.wrap(original, ConstSource(original))
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
            return ctx.raise_error(
                AttributeError, f"{type(self.value).__name__!r} object has no attribute {name!r}"
            )
        if isinstance(self.value, PURE) and callable(found):
            return ctx.bound_rule(self, name)
        return ctx.create(found)

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        origin = typing.get_origin(self.value)
        if not isinstance(origin, type):
            return KnownObjectVariable.call(self, ctx, args, kwargs)
        made = ctx.construct(origin, args, kwargs)
        if isinstance(self.value, _TYPING._GenericAlias) and origin.__dictoffset__:
            made.set_attr(ctx, "__orig_class__", self)
        return made

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if (
            isinstance(self.value, re.Pattern)
            and name == "sub"
            and isinstance(args[0], FunctionVariable)
        ):
            return ctx.polyfill(polyfills.substitute, [self, *args], kwargs)
        if isinstance(self.value, PURE) and hasattr(self.value, name):
            return ctx.fold(getattr(self.value, name), args, kwargs)
        if isinstance(self.value, property) and name in ("getter", "setter", "deleter"):
            return ctx.call_known(getattr(property, name), [self, *args], kwargs)
        if isinstance(self.value, property) and name in ("__get__", "__set__"):
            return ctx.call_known(getattr(self.value, name), args, kwargs)
        if isinstance(
            getattr(self.value, name, None), (types.BuiltinMethodType, types.MethodWrapperType)
        ):
            raise GraphBreak("BD002", f"call of {self.describe()}.{name}")
        return KnownObjectVariable.call_method(self, ctx, name, args, kwargs)

    def iterate(self, ctx: Context) -> VariableTracker:
        if not isinstance(self.value, PURE):
            return KnownObjectVariable.iterate(self, ctx)
        return ctx.fold(list, [self], {}).iterate(ctx)

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        return ctx.fold(lambda value, item: value[item], [self, key], {})

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        return ctx.fold(lambda value, part: part in value, [self, item], {}).truth(ctx)

    def length(self, ctx: Context) -> VariableTracker:
        return ctx.fold(len, [self], {})


@dataclass(frozen=True, slots=True, eq=False)
class BoundRuleVariable(VariableTracker):
    """A method that the owner's tracker implements in ``call_method``."""

    owner: VariableTracker
    name: str

    def python_type(self) -> type:
        return types.BuiltinMethodType

    def truth(self, ctx: Context) -> bool:
        return True

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        if type(self.owner).call_method is VariableTracker.call_method:
            raise GraphBreak("BD007", f"{self.name} of {self.owner.describe()}")
        return self.owner.call_method(ctx, self.name, args, kwargs)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name == "__self__":
            return self.owner
        if name == "__name__":
            return ctx.constant(self.name)
        raise GraphBreak("BD014", f"attribute {name!r} of a method")

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen(self.owner)
        gen.emitter.load_attr(self.name)


@dataclass(frozen=True, slots=True, eq=False)
class NumberOfVariable(VariableTracker):
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
class SuperVariable(VariableTracker):
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
            ctx.require_class_attribute(order[index], name)
            if name in order[index].__dict__:
                return self._bind(ctx, actual, index, name, is_class)
        return ctx.raise_error(AttributeError, f"'super' object has no attribute {name!r}")

    def _bind(
        self, ctx: Context, actual: type, index: int, name: str, is_class: bool
    ) -> VariableTracker:
        base = actual.__mro__[index]
        found = base.__dict__[name]
        source = ClassDictSource(ConstSource(actual), index, name)
        if name == "__new__" and isinstance(found, staticmethod):
            return ctx.wrap(found.__func__, AttrSource(source, "__func__"))
        if isinstance(found, types.BuiltinFunctionType):
            return ctx.wrap_callable(found, source)
        if is_class and not isinstance(found, classmethod):
            return ctx.wrap(found, source)
        return bind(ctx, self.owner, actual, found, source, name)

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        self.get_attr(ctx, "__setattr__").call(ctx, [ctx.constant(name), value], {})
