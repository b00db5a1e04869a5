"""Objects of arbitrary classes, existing or created while evaluating."""

from __future__ import annotations

import threading
import types
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from bytecode_dynamo.class_flags import native_base, type_name
from bytecode_dynamo.errors import GraphBreak, ObservedException
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import AttrSource, Source
from bytecode_dynamo.polyfills.iterators import SequenceIterator
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import DELETED
from bytecode_dynamo.state.protocol import (
    call_known,
    call_special,
    constant_of,
    is_alike,
    new_dict,
    new_iterator,
    new_value,
    pairs_of,
    raise_error,
    raise_exception,
    wrap_value,
)
from bytecode_dynamo.state.requirements import written_in_class
from bytecode_dynamo.state.tracker import VariableTracker

from .attribute import (
    bind_at,
    class_source,
    find_in_class,
    find_special,
    instance_names,
    is_data_descriptor,
    load_attribute,
    load_instance_attribute,
)
from .base import Args, KeyedVariable, Kwargs, Variable, method_of_type
from .constant import NONE, ConstantVariable, is_constant_value
from .iterator import UserIterator
from .wording import ACCEPTED, SpecialMethodVariable
from .wrap import by_type, tracker_for

PLAIN_SETTERS = [
    base.__dict__[name]
    for base in (object, BaseException, types.SimpleNamespace, threading.local)
    for name in ("__setattr__", "__delattr__")
    if name in base.__dict__
]
OPAQUE_GETTERS = (types.ModuleType.__getattribute__, super.__getattribute__)


class ObjectKey:
    """An object in a dict or set, under its own ``__hash__`` and ``__eq__``."""

    __slots__ = ("ctx", "hash", "value")

    def __init__(self, ctx: Context, value: VariableTracker, hash: int) -> None:
        self.ctx, self.value, self.hash = ctx, value, hash

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ObjectKey):
            return is_alike(self.ctx, self.value, other.value)
        return is_constant_value(other) and is_alike(self.ctx, self.value, ConstantVariable(other))


_REFUSALS = {
    "__len__": "object of type {} has no len()",
    "__next__": "{} object is not an iterator",
    "__index__": "{} object cannot be interpreted as an integer",
    "__getitem__": "{} object is not subscriptable",
    "__setitem__": "{} object does not support item assignment",
    "__delitem__": "{} object doesn't support item deletion",
    "__neg__": "bad operand type for unary -: {}",
    "__pos__": "bad operand type for unary +: {}",
    "__invert__": "bad operand type for unary ~: {}",
    "__abs__": "bad operand type for abs(): {}",
}
"""The interpreter's errors for objects without a method."""


def _said_without_a_dict() -> str:
    """The interpreter's wording for an attribute that an object without ``__dict__`` can't hold."""
    try:
        object().name = None  # type: ignore[attr-defined]
    except AttributeError as error:
        return str(error).partition("'name'")[2]
    return ""


_NO_DICT = _said_without_a_dict()
_CLASS = vars(object)["__class__"]


@dataclass(frozen=True, slots=True, eq=False)
class UserObjectVariable(KeyedVariable):
    """An object of a Python class, or an opaque C object whose attributes can be read."""

    def describe(self) -> str:
        where = f" {self.source.shown}" if self.source is not None else ""
        return f"{self.key.cls.__name__} object{where}"

    def class_of(self, ctx: Context) -> type:
        overridden = find_in_class(self.key.cls, "__class__")[1] is not _CLASS
        return self.get_attr(ctx, "__class__").as_constant(ctx) if overridden else self.key.cls

    def as_constant(self, ctx: Context) -> Any:
        rule = ctx.constant_objects.get(self.key.cls)
        if rule is None or not self.key.exists:
            return Variable.as_constant(self, ctx)
        return self.key.value

    def hash_key(self, ctx: Context) -> Hashable:
        cls = self.key.cls
        for name in ("__hash__", "__eq__"):
            find_special(ctx, cls, name)
        if cls.__hash__ is None:
            return raise_error(ctx, TypeError, f"unhashable type: {cls.__name__!r}")
        if (cls.__hash__ is object.__hash__ and cls.__eq__ is object.__eq__) or issubclass(
            cls, torch.nn.Module
        ):
            return self.key
        hashed = self.ask(ctx, "__hash__", [])
        if isinstance(hashed, ConstantVariable):
            return ObjectKey(ctx, self, hash(hashed.value))
        if hashed.python_type() is not int:
            raise GraphBreak("BD007", f"{self.describe()} as a key: its hash is not known")
        return ObjectKey(ctx, self, hash(hashed.hash_key(ctx)))  # such as ``id(self)``

    def truth(self, ctx: Context) -> bool:
        for name in ("__bool__", "__len__"):
            method = self.special(ctx, name)
            if method is not None:
                return method.call(ctx, [], {}).truth(ctx)
        return True

    def special(self, ctx: Context, name: str) -> VariableTracker | None:
        """A special method looked up on the class, bound; None if there is none."""
        index, found = find_special(ctx, self.key.cls, name)
        if index < 0 or found is None:
            return None
        made = bind_at(ctx, self, self.key.cls, index, name)
        return SpecialMethodVariable(made, name) if name in ACCEPTED else made

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        method = self.special(ctx, "__call__")
        if method is None:
            raise GraphBreak("BD002", f"call of {self.describe()}")
        return method.call(ctx, args, kwargs)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        getter = find_special(ctx, self.key.cls, "__getattribute__")[1]
        if isinstance(getter, types.FunctionType):
            return self._intercepted(ctx, name)
        if getter in OPAQUE_GETTERS:
            raise GraphBreak("BD014", f"{self.describe()} has its own __getattribute__")
        return self.plain_get_attr(ctx, name)

    def plain_get_attr(self, ctx: Context, name: str, *, hook: bool = True) -> VariableTracker:
        """``object.__getattribute__``, then the class's ``__getattr__`` if ``hook``."""
        if name == "__dict__" and (
            self.key.cls.__dictoffset__ or issubclass(self.key.cls, threading.local)
        ):
            return instance_dict(ctx, self)
        return load_attribute(ctx, self, self.key, name, hook=hook)

    def _intercepted(self, ctx: Context, name: str) -> VariableTracker:
        getter, fallback = self.special(ctx, "__getattribute__"), self.special(ctx, "__getattr__")
        assert getter is not None
        try:
            return getter.call(ctx, [ConstantVariable(name)], {})
        except ObservedException as raised:
            if fallback is None or not issubclass(raised.value.python_type(), AttributeError):
                raise
            return fallback.call(ctx, [ConstantVariable(name)], {})

    def missing_attribute(self, ctx: Context, name: str) -> VariableTracker | None:
        """The result of ``__getattr__``, or None if the class has none."""
        method = self.special(ctx, "__getattr__")
        return None if method is None else method.call(ctx, [ConstantVariable(name)], {})

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        setter = find_special(ctx, self.key.cls, "__setattr__")[1]
        if setter not in PLAIN_SETTERS:
            self.ask(ctx, "__setattr__", [ConstantVariable(name), value])
            return
        self.store(ctx, name, value)

    def store(self, ctx: Context, name: str, value: VariableTracker) -> None:
        """``object.__setattr__``: data descriptors first, then the instance dict."""
        assigned = written_in_class(ctx, self.key.cls, name)
        if (
            assigned is not None
            and self.key.cls.__dictoffset__
            and not hasattr(assigned.python_type(), "__set__")
        ):
            ctx.effects.write((self.key, name), value)
            return
        index, found = find_special(ctx, self.key.cls, name)
        is_slot = isinstance(found, types.MemberDescriptorType)
        if index >= 0 and is_data_descriptor(found) and not is_slot:
            if not self._ask_descriptor(ctx, name, "fset", "__set__", [value]):
                raise GraphBreak("BD020", f"assignment to {name!r} of {self.describe()}")
            return
        kept = self.key.cls.__dictoffset__ or is_slot
        if not kept and not issubclass(self.key.cls, threading.local):
            self._refuse(ctx, name, index)
        ctx.effects.write((self.key, name), value)

    def _ask_descriptor(
        self, ctx: Context, name: str, accessor: str, method: str, args: Args
    ) -> bool:
        """Call a property's accessor or a descriptor's own method; False if it has none written in
        Python.
        """
        index, found = find_in_class(self.key.cls, name)
        own = isinstance(getattr(type(found), method, None), types.FunctionType)
        if not own and not isinstance(found, property):
            return False
        source = class_source(ctx, self.key.cls, index, name)
        if isinstance(found, property):
            function = getattr(found, accessor)
            if function is None:
                what = {"fset": "setter", "fdel": "deleter"}[accessor]
                owner = f"property {name!r} of {self.key.cls.__qualname__!r} object"
                raise_error(ctx, AttributeError, f"{owner} has no {what}")
            wrap_value(ctx, function, AttrSource(source, accessor)).call(ctx, [self, *args], {})
            return True
        wrap_value(ctx, found, source).call_method(ctx, method, [self, *args], {})
        return True

    def del_attr(self, ctx: Context, name: str) -> None:
        deleter = find_special(ctx, self.key.cls, "__delattr__")[1]
        if deleter not in PLAIN_SETTERS:
            self.ask(ctx, "__delattr__", [ConstantVariable(name)])
            return
        self.remove(ctx, name)

    def remove(self, ctx: Context, name: str) -> None:
        """``object.__delattr__``."""
        index, found = find_special(ctx, self.key.cls, name)
        if index >= 0 and self._ask_descriptor(ctx, name, "fdel", "__delete__", []):
            return
        if isinstance(found, types.MemberDescriptorType):
            try:
                bind_at(ctx, self, self.key.cls, index, name)
            except ObservedException:
                raise_error(ctx, AttributeError, name)
        elif load_instance_attribute(ctx, self.key, name) is None:
            self._refuse(ctx, name, index)
        ctx.effects.write((self.key, name), DELETED)

    def _refuse(self, ctx: Context, name: str, index: int) -> None:
        """Raise the error for setting or deleting an attribute that the object can't hold."""
        why = f"has no attribute {name!r}"
        if not self.key.cls.__dictoffset__:
            why = f"attribute {name!r} is read-only" if index >= 0 else why + _NO_DICT
        raise_error(ctx, AttributeError, f"{type_name(self.key.cls)!r} object {why}")

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        return self.get_attr(ctx, name).call(ctx, args, kwargs)

    def ask(self, ctx: Context, name: str, args: Args) -> VariableTracker:
        """Call a special method as the interpreter does."""
        method = self.special(ctx, name)
        if method is None:
            text = _REFUSALS.get(name, f"{{}} object does not support {name}")
            return raise_error(ctx, TypeError, text.format(repr(self.key.cls.__name__)))
        return method.call(ctx, args, {})

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        return self.ask(ctx, "__getitem__", [key])

    def set_item(self, ctx: Context, key: VariableTracker, value: VariableTracker) -> None:
        self.ask(ctx, "__setitem__", [key, value])

    def del_item(self, ctx: Context, key: VariableTracker) -> None:
        self.ask(ctx, "__delitem__", [key])

    def length(self, ctx: Context) -> VariableTracker:
        return self.ask(ctx, "__len__", [])

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        method = self.special(ctx, "__contains__")
        if method is not None:
            return method.call(ctx, [item], {}).truth(ctx)
        if self.special(ctx, "__iter__") is None and self.special(ctx, "__getitem__") is None:
            raise_error(
                ctx, TypeError, f"argument of type {self.key.cls.__name__!r} is not iterable"
            )
        return Variable.contains(self, ctx, item)

    def iterate(self, ctx: Context) -> VariableTracker:
        if isinstance(find_special(ctx, self.key.cls, "__next__")[1], types.WrapperDescriptorType):
            raise GraphBreak("BD012", f"iteration over {self.describe()}")
        method = self.special(ctx, "__iter__")
        if method is None and self.special(ctx, "__getitem__") is not None:
            return call_known(ctx, SequenceIterator, [self], {})
        if method is None:
            return raise_error(ctx, TypeError, f"{self.key.cls.__name__!r} object is not iterable")
        found = method.call(ctx, [], {})
        return UserIterator(found) if isinstance(found, UserObjectVariable) else found

    def as_index(self, ctx: Context) -> Any:
        found = self.special(ctx, "__index__") is not None
        return constant_of(ctx, self.ask(ctx, "__index__", []) if found else self, "an index")

    def reconstruct(self, gen: ValueBuilder) -> None:
        """Push a new object, whose attributes are set later."""
        gen.call_const(native_base(self.key.cls).__new__, self.key.cls)
        gen.keep(self.key)
        gen.fill_attributes(self.key)

    def complete(self, gen: ValueBuilder) -> None:
        if self.key.exists:
            return
        if self.key not in gen.built:
            gen.spill(self)
        gen.flush()


def instance_dict(ctx: Context, owner: UserObjectVariable) -> VariableTracker:
    """``owner.__dict__``: the tracker by which the program reached the dict before, if any."""
    key = owner.key
    held = getattr(key.value, "__dict__", None) if key.exists else None
    if held is not None and key.source is not None and ctx.effects.find(held) is not None:
        return wrap_value(ctx, held, AttrSource(key.source, "__dict__"))
    return InstanceDictVariable(owner)


@dataclass(frozen=True, slots=True, eq=False)
class InstanceDictVariable(Variable):
    """``obj.__dict__``: operations act on the attributes of the object."""

    owner: UserObjectVariable

    def python_type(self) -> type:
        return dict

    def _name(self, ctx: Context, key: VariableTracker) -> str:
        name = key.as_constant(ctx)
        if type(name) is not str:
            raise GraphBreak("BD007", "an instance dict with keys that are not strings")
        return name

    def names(self, ctx: Context) -> list[str]:
        """The current keys, guarded."""
        key = self.owner.key
        if key.exists and key.source is not None:
            ctx.guards.require(
                AttrSource(key.source, "__dict__"), GuardKind.DICT_KEYS, tuple(key.value.__dict__)
            )
        return instance_names(ctx, key)

    def get(self, ctx: Context, name: str) -> VariableTracker | None:
        """The value under a key."""
        return load_instance_attribute(ctx, self.owner.key, name)

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        return self.get(ctx, self._name(ctx, key)) or raise_exception(ctx, KeyError, [key])

    def set_item(self, ctx: Context, key: VariableTracker, value: VariableTracker) -> None:
        ctx.effects.write((self.owner.key, self._name(ctx, key)), value)

    def del_item(self, ctx: Context, key: VariableTracker) -> None:
        self.owner.remove(ctx, self._name(ctx, key))

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        return self.get(ctx, self._name(ctx, item)) is not None

    def unpack(self, ctx: Context) -> list[VariableTracker]:
        return [ConstantVariable(name) for name in self.names(ctx)]

    def iterate(self, ctx: Context) -> VariableTracker:
        return new_iterator(ctx, self.unpack(ctx))

    def length(self, ctx: Context) -> VariableTracker:
        return ConstantVariable(len(self.names(ctx)))

    def truth(self, ctx: Context) -> bool:
        return bool(self.names(ctx))

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "get":
            return self.get(ctx, self._name(ctx, args[0])) or (args[1] if len(args) > 1 else NONE)
        if name in ("keys", "values", "items", "copy"):
            pairs = [(ConstantVariable(key), self.get(ctx, key) or NONE) for key in self.names(ctx)]
            return new_dict(ctx, pairs).call_method(ctx, name, args, kwargs)
        if name == "setdefault":
            found = self.get(ctx, self._name(ctx, args[0]))
            if found is None:
                self.set_item(ctx, args[0], found := args[1] if len(args) > 1 else NONE)
            return found
        if name == "update":
            pairs = [pair for arg in args for pair in pairs_of(ctx, arg)]
            pairs += [(ConstantVariable(key), value) for key, value in kwargs.items()]
            for key, value in pairs:
                self.set_item(ctx, key, value)
            return NONE
        if name == "pop":
            found = self.get(ctx, self._name(ctx, args[0]))
            if found is None:
                return args[1] if len(args) > 1 else raise_exception(ctx, KeyError, [args[0]])
            self.del_item(ctx, args[0])
            return found
        if name in ("__getitem__", "__contains__", "__setitem__"):
            return call_special(ctx, self, name, args)
        raise GraphBreak("BD007", f"__dict__.{name}")

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        return method_of_type(ctx, self, name)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen(self.owner)
        gen.emitter.load_attr("__dict__")


tracker_for(object)(by_type(UserObjectVariable))


@dataclass(frozen=True, slots=True, eq=False)
class OpaqueVariable(Variable):
    """An existing value of which only the type is known; it can be passed on, but any use breaks
    the graph.
    """

    cls: type
    what: str

    def python_type(self) -> type:
        return self.cls

    def describe(self) -> str:
        return self.what

    def truth(self, ctx: Context) -> bool:
        return VariableTracker.truth(self, ctx)


def wrap_opaque(ctx: Context, value: object, source: Source, what: str) -> VariableTracker:
    """A value that is not modelled."""
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    return ctx.effects.remember(
        value, OpaqueVariable(type(value), f"{source.shown}, {what}", source=source)
    )


@protocol.new_constant.implement
def _new_constant(ctx: Context, value: Any) -> VariableTracker:
    if is_constant_value(value):
        return new_value(ctx, value)
    return ConstantVariable(str(value))
