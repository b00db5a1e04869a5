"""Classes as values: attributes, calls, metaclasses."""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from bytecode_dynamo.class_flags import IMMUTABLE
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import ABSENT, Answer, GuardKind
from bytecode_dynamo.guards.source import AttrSource, ClassDictSource, ConstSource, Source
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import DELETED
from bytecode_dynamo.state.protocol import (
    fold_call,
    instantiate,
    new_class,
    new_dict,
    new_iterator,
    new_list,
    new_value,
    raise_error,
    raise_no_attribute,
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

from .attribute import (
    bind,
    bind_at,
    class_source,
    find_in_class,
    find_special,
    has_python_method,
    has_special,
)
from .base import Args, Kwargs, LazyVariable, Variable
from .callable import CallableVariable, KnownObjectVariable, is_of_typing
from .constant import ConstantVariable
from .function import BoundMethodVariable
from .proxy import ProxyVariable
from .wording import accepted
from .wrap import by_identity, tracker_for

_OF_CLASSES = ("__name__", "__qualname__", "__module__", "__doc__", "__mro__", "__bases__")


# the dtypes that torch reads number classes as
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
                same = Answer(f"{{}}.{name}", lambda now: getattr(now, name), found)
                ctx.guards.require(ConstSource(cls), GuardKind.CUSTOM, same)
            return new_value(ctx, found)
        if name == "__dict__":
            return self._namespace(ctx, cls)
        index, found = find_in_class(cls, name)
        if index >= 0:
            return self._bind(ctx, found, class_source(ctx, cls, index, name), name)
        return self._from_metaclass(ctx, name)

    def _namespace(self, ctx: Context, cls: type) -> VariableTracker:
        """``cls.__dict__``: names are guarded now, values when they are read."""
        names = tuple(cls.__dict__)
        same = Answer("tuple({}.__dict__)", lambda now: tuple(now.__dict__), names)
        ctx.guards.require(ConstSource(cls), GuardKind.CUSTOM, same)
        pairs = [(ConstantVariable(name), self._held(ctx, cls, name)) for name in names]
        return ProxyVariable(new_dict(ctx, pairs))

    def _held(self, ctx: Context, cls: type, name: str) -> VariableTracker:
        return written_in_class(ctx, cls, name) or LazyVariable(
            cls.__dict__[name], source=class_source(ctx, cls, 0, name)
        )

    def _from_metaclass(self, ctx: Context, name: str) -> VariableTracker:
        meta = type(self.value)
        index, _ = find_special(ctx, meta, name)
        if index >= 0:
            if not self.value.__flags__ & IMMUTABLE:
                require_class_attribute(ctx, self.value, name)
            return bind_at(ctx, self, meta, index, name)
        require_class_attribute(ctx, self.value, name)
        index, found = find_special(ctx, meta, "__getattr__")
        if isinstance(found, types.FunctionType):
            return wrap_value(ctx, found, class_source(ctx, meta, index, "__getattr__")).call(
                ctx, [self, ConstantVariable(name)], {}
            )
        return raise_no_attribute(ctx, f"type object {self.value.__name__!r}", name)

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
        meta = type(self.value)
        own = has_python_method(ctx, meta, "__setattr__") or has_special(ctx, meta, name)
        if own or name.startswith("__") or self.value.__flags__ & IMMUTABLE:
            raise GraphBreak("BD020", f"assignment to {name!r} of class {self.value.__name__}")
        ctx.written_in_classes.add((self.value, name))
        ctx.effects.write((class_identity(ctx, self.value), name), value)

    def del_attr(self, ctx: Context, name: str) -> None:
        if (
            written_in_class(ctx, self.value, name, own=True) is None
            and name not in self.value.__dict__
        ):
            raise_no_attribute(ctx, f"type object {self.value.__name__!r}", name)
        self.set_attr(ctx, name, DELETED)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "mro" and not args:
            return new_list(ctx, self.get_attr(ctx, "__mro__").unpack(ctx))
        if name == "__subclasses__" and not args:
            found = self.value.__subclasses__()
            same = Answer("{}.__subclasses__()", lambda cls: cls.__subclasses__(), found)
            ctx.guards.require(ConstSource(self.value), GuardKind.CUSTOM, same)
            return new_list(ctx, [new_class(ctx, cls) for cls in found])
        return self.get_attr(ctx, name).call(ctx, args, kwargs)

    def of_metaclass(self, ctx: Context, name: str, args: Args) -> VariableTracker | None:
        """The result of a special method of a metaclass written in Python."""
        if isinstance(self.value, enum.EnumMeta):
            return None
        if not has_python_method(ctx, type(self.value), name):
            return None
        return accepted(name, self._from_metaclass(ctx, name).call(ctx, args, {}))

    def truth(self, ctx: Context) -> bool:
        made = self.of_metaclass(ctx, "__bool__", []) or self.of_metaclass(ctx, "__len__", [])
        return True if made is None else made.truth(ctx)

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        made = self.of_metaclass(ctx, "__getitem__", [key])
        if made is not None:
            return made
        if has_special(ctx, type(self.value), "__getitem__"):
            if isinstance(self.value, enum.EnumMeta):
                enum_members(ctx, self.value)
            return fold_call(ctx, lambda cls, item: cls[item], [self, key])
        found = require_class_attribute(ctx, self.value, "__class_getitem__")
        if (
            isinstance(found, classmethod)
            and isinstance(found.__func__, types.FunctionType)
            and not is_of_typing(found.__func__)
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


tracker_for(type)(by_identity(ClassVariable))


@protocol.new_class.implement
def _new_class(ctx: Context, cls: type) -> VariableTracker:
    """A class that is pinned by other guards."""
    return ClassVariable(cls)


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
        return raise_no_attribute(ctx, super, name)

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
