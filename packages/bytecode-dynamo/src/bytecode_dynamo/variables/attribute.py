"""Attribute access by Python's rules: MRO, descriptors, instance dict, ``__getattr__``."""

from __future__ import annotations

import collections
import functools
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bytecode_dynamo.class_flags import IMMUTABLE
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import AttrSource, ClassDictSource, ConstSource, Source
from bytecode_dynamo.hook.frame_hook import Activated
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import DELETED, MISSING, Identity
from bytecode_dynamo.state.protocol import (
    call_known,
    new_class,
    raise_error,
    raise_no_attribute,
    wrap_callable,
    wrap_value,
)
from bytecode_dynamo.state.requirements import require_class_attribute, written_in_class
from bytecode_dynamo.state.tracker import VariableTracker

from .function import BoundMethodVariable


def find_in_class(cls: type, name: str) -> tuple[int, Any]:
    """Index in the resolution order and raw value of a class attribute; (-1, MISSING) when there is
    none.
    """
    for index, base in enumerate(cls.__mro__):
        if name in base.__dict__:
            return index, base.__dict__[name]
    return -1, MISSING


def find_special(ctx: Context, cls: type, name: str) -> tuple[int, Any]:
    """``find_in_class`` for a special method, guarded if the class can change."""
    if not cls.__flags__ & IMMUTABLE:
        require_class_attribute(ctx, cls, name)
    return find_in_class(cls, name)


def has_special(ctx: Context, cls: type, *names: str) -> bool:
    """Whether a class has one of these special methods, guarded."""
    return any(find_special(ctx, cls, name)[0] >= 0 for name in names)


def has_python_method(ctx: Context, cls: type, *names: str) -> bool:
    """Whether one of these special methods is written in Python, guarded."""
    return any(isinstance(find_special(ctx, cls, name)[1], types.FunctionType) for name in names)


def class_source(ctx: Context, cls: type, index: int, name: str) -> Source:
    """The source of a class attribute, guarded so that no earlier class in the MRO gains one."""
    require_class_attribute(ctx, cls, name)
    return ClassDictSource(ConstSource(cls), index, name)


def is_data_descriptor(found: object) -> bool:
    """Whether a class attribute takes precedence over the instance dict."""
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


@protocol.class_attribute.implement
def load_class_attribute(
    ctx: Context, owner: VariableTracker, cls: type, name: str
) -> VariableTracker:
    """``owner.name`` for a type without instance dict; raises AttributeError in the program."""
    index, _ = find_in_class(cls, name)
    return (
        bind_at(ctx, owner, cls, index, name) if index >= 0 else raise_no_attribute(ctx, cls, name)
    )


def bind_at(
    ctx: Context, owner: VariableTracker, cls: type, index: int, name: str
) -> VariableTracker:
    """Bind the attribute at an index of the resolution order to an instance."""
    source = class_source(ctx, cls, index, name)
    return bind(ctx, owner, cls, cls.__mro__[index].__dict__[name], source, name)


def bind(
    ctx: Context, owner: VariableTracker, cls: type, found: Any, source: Source, name: str
) -> VariableTracker:
    """Bind a raw class attribute to an instance."""
    kind = next((base for base in type(found).__mro__ if "__get__" in base.__dict__), None)
    if kind is None:
        return wrap_value(ctx, found, source)
    rule = BINDERS.get(kind)
    if rule is not None:
        return rule(Descriptor(ctx, owner, cls, found, source, name))
    if isinstance(kind.__dict__["__get__"], types.FunctionType):
        descriptor = wrap_value(ctx, found, source)
        return descriptor.call_method(ctx, "__get__", [owner, new_class(ctx, cls)], {})
    raise GraphBreak("BD014", f"attribute {name!r} of a {cls.__name__} is a {type(found).__name__}")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A descriptor found in the class of an instance."""

    ctx: Context
    owner: Any
    cls: type
    value: Any
    source: Source
    name: str

    def part(self, name: str) -> VariableTracker:
        """An attribute of the descriptor, such as ``fget``."""
        return wrap_value(self.ctx, getattr(self.value, name), AttrSource(self.source, name))


def _bind_property(attr: Descriptor) -> VariableTracker:
    if attr.value.fget is None:
        return raise_error(
            attr.ctx,
            AttributeError,
            f"property {attr.name!r} of {attr.cls.__name__!r} object has no getter",
        )
    return attr.part("fget").call(attr.ctx, [attr.owner], {})


def _bind_cached(attr: Descriptor) -> VariableTracker:
    value = attr.part("func").call(attr.ctx, [attr.owner], {})
    key = attr.owner.identity()
    if not isinstance(key, Identity):
        raise GraphBreak("BD014", f"cached property {attr.name!r} of a {attr.cls.__name__}")
    attr.ctx.effects.write((key, attr.name), value)
    return value


def _bind_slot(attr: Descriptor) -> VariableTracker:
    ctx, key, name = attr.ctx, attr.owner.identity(), attr.name
    if issubclass(attr.cls, torch.Tensor) and isinstance(attr.value, types.GetSetDescriptorType):
        return call_known(ctx, attr.value.__get__, [attr.owner], {})  # super().shape
    if isinstance(key, Identity):
        written = ctx.effects.read((key, name))
        if written is not MISSING and written is not DELETED:
            return written
        if written is MISSING and key.exists and key.source is not None:
            if find_in_class(attr.cls, name)[1] is not attr.value:  # reading it asks the override
                raise GraphBreak(
                    "BD014", f"attribute {name!r} of a base class of {attr.cls.__name__}"
                )
            if hasattr(key.value, name):
                return wrap_value(ctx, getattr(key.value, name), AttrSource(key.source, name))
            is_filled = functools.partial(_is_filled, attr.value)
            same = Answer(f"hasattr({{}}, {name!r})", is_filled, False)
            ctx.guards.require(key.source, GuardKind.CUSTOM, same)
    return raise_no_attribute(ctx, attr.cls, name)


def _is_filled(slot: Any, value: object) -> bool:
    """Whether an object's slot has a value."""
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def _bind_function(attr: Descriptor) -> VariableTracker:
    return BoundMethodVariable(wrap_value(attr.ctx, attr.value, attr.source), attr.owner)


def _bind_builtin(attr: Descriptor) -> VariableTracker:
    return BoundMethodVariable(wrap_callable(attr.ctx, attr.value, attr.source), attr.owner)


BINDERS: dict[type, Callable[[Descriptor], VariableTracker]] = {
    types.FunctionType: _bind_function,
    Activated: _bind_function,
    staticmethod: lambda attr: attr.part("__func__"),
    classmethod: lambda attr: BoundMethodVariable(
        attr.part("__func__"), new_class(attr.ctx, attr.cls)
    ),
    property: _bind_property,
    functools.cached_property: _bind_cached,
    types.MemberDescriptorType: _bind_slot,
    types.GetSetDescriptorType: _bind_slot,
    types.MethodDescriptorType: _bind_builtin,
    types.WrapperDescriptorType: _bind_builtin,
    types.ClassMethodDescriptorType: lambda attr: BoundMethodVariable(
        wrap_callable(attr.ctx, attr.value, attr.source), new_class(attr.ctx, attr.cls)
    ),
    functools._lru_cache_wrapper: _bind_function,
    type(vars(collections.namedtuple("_Named", "field"))["field"]): lambda attr: (
        attr.owner.contents.unpack(attr.ctx)[attr.value.__reduce__()[1][0]]
    ),
}


def load_attribute(
    ctx: Context, owner: VariableTracker, key: Identity, name: str, *, hook: bool = True
) -> VariableTracker:
    """``owner.name`` for an object with an instance dict; ``hook``: with its class's
    ``__getattr__``.
    """
    cls = key.cls
    written = written_in_class(ctx, cls, name)
    if written is not None:
        return load_instance_attribute(ctx, key, name) or bind_written(owner, written)
    index, found = find_in_class(cls, name)
    if index < 0 or not is_data_descriptor(found):
        held = load_instance_attribute(ctx, key, name)
        if held is not None:
            return held
    if index >= 0:
        return bind_at(ctx, owner, cls, index, name)
    require_class_attribute(ctx, cls, name)
    fallback = owner.missing_attribute(ctx, name) if hook else None  # pyright: ignore[reportAttributeAccessIssue]
    if fallback is not None:
        return fallback
    return raise_no_attribute(ctx, cls, name)


def bind_written(owner: VariableTracker, held: VariableTracker) -> VariableTracker:
    """Bind a class attribute that the program assigned to an instance."""
    kind = held.python_type()
    if kind in (types.FunctionType, functools._lru_cache_wrapper):
        return BoundMethodVariable(held, owner)
    if hasattr(kind, "__get__"):
        raise GraphBreak(
            "BD020", f"a {kind.__name__} assigned to a class, read through an instance"
        )
    return held


def load_instance_attribute(ctx: Context, key: Identity, name: str) -> VariableTracker | None:
    """The value in the instance dict under a name, or None."""
    written = ctx.effects.read((key, name))
    if written is DELETED:
        return None
    if written is not MISSING:
        return written
    if not key.exists or key.source is None:
        return None
    held = instance_dict(key.value)
    if held is None:
        return None
    hidden = isinstance(key.cls.__getattribute__, types.FunctionType)
    if name not in held:
        ctx.guards.require(AttrSource(key.source, "__dict__", hidden), GuardKind.NO_ATTR, name)
        return None
    return wrap_value(ctx, held[name], AttrSource(key.source, name, hidden))


def instance_dict(value: object) -> dict[str, Any] | None:
    """The instance dict, ignoring the class's own attribute access."""
    try:
        owner: Any = threading.local if isinstance(value, threading.local) else object
        return owner.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def instance_names(ctx: Context, key: Identity) -> list[str]:
    """The keys of the instance dict now."""
    names: dict[str, None] = dict.fromkeys(instance_dict(key.value) or ()) if key.exists else {}
    for name, value in ctx.effects.attributes(key).items():
        if value is DELETED:
            names.pop(name, None)
        else:
            names[name] = None
    return list(names)
