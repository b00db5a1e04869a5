"""Tuples (also named tuples and torch.Size), lists, deques and ranges."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import AttrSource, ItemSource, Source, hidden_lookup
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import (
    binary_operation,
    fold_call,
    iterate_list,
    iterate_range,
    new_dict,
    new_iterator,
    new_list,
    raise_error,
    raising,
    wrap_contents,
)
from bytecode_dynamo.state.requirements import require_class_attribute
from bytecode_dynamo.state.tracker import VariableTracker

from .base import (
    Args,
    BoundRuleVariable,
    ContainerVariable,
    KeyedVariable,
    Kwargs,
    LazyVariable,
    MethodTable,
    realize,
)
from .constant import ConstantVariable
from .wrap import tracker_for

Items = tuple[VariableTracker, ...]
SEQUENCE_METHODS = MethodTable()
LIST_METHODS = MethodTable(SEQUENCE_METHODS)
DEQUE_METHODS = MethodTable(LIST_METHODS)


@dataclass(frozen=True, slots=True, eq=False)
class SequenceVariable(ContainerVariable):
    """The base of tuples and lists; read ``items`` through :meth:`elements`."""

    def elements(self, ctx: Context) -> Items:
        """The current items, some perhaps lazy."""
        raise NotImplementedError

    def same_kind(self, ctx: Context, items: Sequence[VariableTracker]) -> VariableTracker:
        """A new sequence of the built-in base type, as slicing and adding return."""
        raise NotImplementedError

    def native(self, items: Items) -> Any:
        """The items in a built-in sequence, whose index errors are worded as the program's."""
        return items

    def methods(self) -> MethodTable:
        return SEQUENCE_METHODS

    def as_constant(self, ctx: Context) -> Any:
        return self.python_type()(
            [realize(ctx, item).as_constant(ctx) for item in self.elements(ctx)]
        )

    def as_proxy(self, ctx: Context) -> Any:
        return [realize(ctx, item).as_proxy(ctx) for item in self.elements(ctx)]

    def as_fake(self, ctx: Context) -> Any:
        return [realize(ctx, item).as_fake(ctx) for item in self.elements(ctx)]

    def truth(self, ctx: Context) -> bool:
        return bool(self.elements(ctx))

    def length(self, ctx: Context) -> VariableTracker:
        return ConstantVariable(len(self.elements(ctx)))

    def unpack(self, ctx: Context) -> list[VariableTracker]:
        return [realize(ctx, item) for item in self.elements(ctx)]

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        items = self.native(self.elements(ctx))
        index = key.as_index(ctx)
        with raising(ctx, IndexError, TypeError, ValueError):
            found = items[index]
        return self.same_kind(ctx, found) if isinstance(index, slice) else realize(ctx, found)  # pyright: ignore


@dataclass(frozen=True, slots=True, eq=False)
class TupleVariable(SequenceVariable):
    """An immutable sequence: tuple, torch.Size, a named tuple, or a struct sequence of
    torch.return_types.
    """

    items: Items
    cls: type = tuple

    def python_type(self) -> type:
        return self.cls

    def identity(self) -> object:
        return () if not self.items and self.cls is tuple else self

    def elements(self, ctx: Context) -> Items:
        return self.items

    def same_kind(self, ctx: Context, items: Sequence[VariableTracker]) -> VariableTracker:
        return TupleVariable(tuple(items), torch.Size if self.cls is torch.Size else tuple)

    def as_constant(self, ctx: Context) -> Any:
        values = [realize(ctx, item).as_constant(ctx) for item in self.items]
        return self._build(values)

    def _build(self, values: list[Any]) -> Any:
        if hasattr(self.cls, "_fields"):
            return tuple.__new__(self.cls, values)
        return self.cls(values)

    def as_proxy(self, ctx: Context) -> Any:
        return tuple(realize(ctx, item).as_proxy(ctx) for item in self.items)

    def as_fake(self, ctx: Context) -> Any:
        return tuple(realize(ctx, item).as_fake(ctx) for item in self.items)

    def hash_key(self, ctx: Context) -> Hashable:
        return tuple(realize(ctx, item).hash_key(ctx) for item in self.items)

    def iterate(self, ctx: Context) -> VariableTracker:
        return new_iterator(ctx, self.items)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        index = _field_index(ctx, self.cls, name)
        if index is not None:
            return realize(ctx, self.items[index])
        if self.cls is torch.Size and name == "numel":
            return BoundRuleVariable(self, "numel")
        if name in ("_replace", "_asdict") and hasattr(self.cls, "_fields"):
            require_class_attribute(ctx, self.cls, "_fields")
            found = require_class_attribute(ctx, self.cls, name)
            if getattr(found, "__globals__", None) is vars(collections):
                return BoundRuleVariable(self, name)
        return SequenceVariable.get_attr(self, ctx, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "numel" and self.cls is torch.Size:
            return product_of(ctx, self.unpack(ctx))
        if name == "_replace":
            fields = {**dict(zip(self.cls._fields, self.items)), **kwargs}  # pyright: ignore[reportAttributeAccessIssue]
            return TupleVariable(tuple(fields.values()), self.cls)
        if name == "_asdict":
            names = [ConstantVariable(field) for field in self.cls._fields]  # pyright: ignore[reportAttributeAccessIssue]
            return new_dict(ctx, list(zip(names, self.items)))
        return SequenceVariable.call_method(self, ctx, name, args, kwargs)

    def reconstruct(self, gen: ValueBuilder) -> None:
        if self.cls is tuple:
            gen.build_tuple(self.items)
        elif hasattr(self.cls, "_fields"):
            gen.call_const(tuple.__new__, self.cls, TupleVariable(self.items))
        else:
            gen.call_const(self.cls, TupleVariable(self.items))


def _field_index(ctx: Context, cls: type, name: str) -> int | None:
    if hasattr(cls, "_fields"):
        found = require_class_attribute(ctx, cls, name)
        return found.__reduce__()[1][0] if type(found) is _FIELD else None
    if cls.__module__ == "torch.return_types" and name not in dir(tuple):
        member = cls.__dict__.get(name)
        if isinstance(member, types.MemberDescriptorType):
            names = [key for key, value in cls.__dict__.items() if type(value) is type(member)]
            return names.index(name)
    return None


_FIELD = type(vars(collections.namedtuple("_Named", "field"))["field"])


@dataclass(frozen=True, slots=True, eq=False)
class ListVariable(KeyedVariable, SequenceVariable):
    """A list or deque, with its items in the effects."""

    maxlen: int | None = None

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name == "maxlen" and self.key.cls is collections.deque:
            return ConstantVariable(self.maxlen)
        return SequenceVariable.get_attr(self, ctx, name)

    def methods(self) -> MethodTable:
        return LIST_METHODS if self.key.cls is not collections.deque else DEQUE_METHODS

    def elements(self, ctx: Context) -> Items:
        return ctx.effects.read(self.key)

    def native(self, items: Iterable[Any]) -> Any:
        if self.key.cls is list:
            return self.key.cls(items)
        return collections.deque(items, self.maxlen)

    def as_constant(self, ctx: Context) -> Any:
        return self.native([item.as_constant(ctx) for item in self.unpack(ctx)])

    def replace(self, ctx: Context, items: Iterable[VariableTracker], moved: bool = True) -> None:
        """Replace the items."""
        ctx.effects.write(self.key, tuple(items))
        if moved and self.key.cls is collections.deque:
            ctx.effects.note_move(self.key)

    def same_kind(self, ctx: Context, items: Sequence[VariableTracker]) -> VariableTracker:
        return new_list(ctx, collections.deque(items, self.maxlen), self.key.cls, self.maxlen)

    def hash_key(self, ctx: Context) -> Hashable:
        return raise_error(ctx, TypeError, f"unhashable type: {self.key.cls.__name__!r}")

    def iterate(self, ctx: Context) -> VariableTracker:
        return iterate_list(ctx, self)

    def set_item(self, ctx: Context, key: VariableTracker, value: VariableTracker) -> None:
        index = key.as_index(ctx)
        with raising(ctx, IndexError, TypeError, ValueError):
            given = value.unpack(ctx) if isinstance(index, slice) else value
            items = self.native(self.elements(ctx))
            items[index] = given
        self.replace(ctx, items, moved=False)

    def del_item(self, ctx: Context, key: VariableTracker) -> None:
        items = self.native(self.elements(ctx))
        index = key.as_index(ctx)
        with raising(ctx, IndexError, TypeError):
            del items[index]
        self.replace(ctx, items)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.begin(self.key)
        items = self.elements(gen.ctx)
        if self.key.cls is list:
            gen.emitter.build_list(gen.push_all(items))
        else:
            gen.emitter.load_callee_const(self.key.cls)
            gen.build_tuple(items)
            gen.load_const(self.maxlen)
            gen.emitter.call(2)
        gen.keep(self.key)


@dataclass(frozen=True, slots=True, eq=False)
class RangeVariable(SequenceVariable):
    """``range`` with known bounds; symbolic bounds are specialised, since loops are unrolled."""

    value: range

    def python_type(self) -> type:
        return range

    def as_constant(self, ctx: Context) -> Any:
        return self.value

    def as_proxy(self, ctx: Context) -> Any:
        return list(self.value)

    def as_fake(self, ctx: Context) -> Any:
        return list(self.value)

    def elements(self, ctx: Context) -> Items:
        return tuple(ConstantVariable(number) for number in self.value)

    def length(self, ctx: Context) -> VariableTracker:
        return ConstantVariable(len(self.value))

    def truth(self, ctx: Context) -> bool:
        return bool(self.value)

    def hash_key(self, ctx: Context) -> Hashable:
        return self.value

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name in ("start", "stop", "step"):
            return ConstantVariable(getattr(self.value, name))
        return SequenceVariable.get_attr(self, ctx, name)

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        return fold_call(ctx, operator.getitem, [self, key])

    def iterate(self, ctx: Context) -> VariableTracker:
        return iterate_range(ctx, self.value)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.load_const(self.value)


# -- wrapping --------------------------------------------------------------------------------------


def lazy_items(value: Iterable[Any], source: Source, lookup: Any = None) -> Items:
    """Lazy items, read on use."""
    return tuple(
        LazyVariable(item, source=ItemSource(source, index, lookup))
        for index, item in enumerate(value)
    )


def require_length(ctx: Context, value: Any, source: Source, base: Any) -> None:
    """Guard on the number of items in the built-in contents."""
    length = base.__len__(value)
    if type(value).__len__ is base.__len__:
        ctx.guards.require(source, GuardKind.LENGTH, length)
    else:
        ctx.guards.require(source, GuardKind.CUSTOM, Answer("len({})", base.__len__, length))


def is_plain_tuple(cls: type) -> bool:
    """Whether tuples of this class have no instance attributes; a named tuple's methods are on its
    class.
    """
    return (
        cls in (tuple, torch.Size)
        or cls.__module__ == "torch.return_types"
        or cls.__dictoffset__ == 0
    )


tracker_for(list)(lambda ctx, value, source: _wrap_sequence(ctx, list, value, source))


@tracker_for(collections.deque)
def wrap_deque(ctx: Context, value: collections.deque[Any], source: Source) -> VariableTracker:
    ctx.guards.require(AttrSource(source, "maxlen"), GuardKind.EQUALS, value.maxlen)
    return _wrap_sequence(ctx, collections.deque, value, source)


def _wrap_sequence(ctx: Context, base: type, value: Any, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    require_length(ctx, value, source, base)
    key = Identity(base, value, source)
    items = lazy_items(base.__iter__(value), source, hidden_lookup(type(value), base))
    ctx.effects.set_initial(key, items)
    contents = ListVariable(key, getattr(value, "maxlen", None))
    return wrap_contents(ctx, value, source, contents, base)


@tracker_for(tuple)
def wrap_tuple(ctx: Context, value: tuple[Any, ...], source: Source) -> VariableTracker:
    if hasattr(type(value), "n_sequence_fields") and type(value).__module__ != "torch.return_types":
        ctx.guards.require(source, GuardKind.IDENTITY, value)
        return ConstantVariable(value, source=source)
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    items = lazy_items(tuple.__iter__(value), source, hidden_lookup(type(value), tuple))
    require_length(ctx, value, source, tuple)
    if is_plain_tuple(type(value)):
        return ctx.effects.remember(value, TupleVariable(items, type(value), source=source))
    return wrap_contents(ctx, value, source, TupleVariable(items), tuple)


@tracker_for(range)
def wrap_range(ctx: Context, value: range, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.EQUALS, value)
    return RangeVariable(value, source=source)


def new_tuple(items: Sequence[VariableTracker], cls: type = tuple) -> TupleVariable:
    """A new tuple."""
    return TupleVariable(tuple(items), cls)


@protocol.new_list.implement
def _new_list(
    ctx: Context, items: Sequence[VariableTracker], cls: type = list, maxlen: int | None = None
) -> ListVariable:
    """A new list (or deque)."""
    key = Identity(cls)
    ctx.effects.write(key, tuple(items))
    return ListVariable(key, maxlen)


def product_of(ctx: Context, items: Sequence[VariableTracker]) -> VariableTracker:
    """The product of sizes."""
    total: VariableTracker = ConstantVariable(1)
    for item in items:
        total = binary_operation(ctx, "*", total, item)
    return total
