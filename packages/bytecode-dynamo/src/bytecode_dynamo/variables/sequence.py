"""Tuples (also named tuples and torch.Size), lists, deques and ranges."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bytecode_dynamo.effects import Identity
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards import GuardKind
from bytecode_dynamo.source import ItemSource, Source

from .base import Args, Kwargs, LazyVariable, MethodTable, VariableTracker, no_keywords
from .constant import ConstantVariable, SliceVariable
from .wrap import tracker_for

if TYPE_CHECKING:
    from bytecode_dynamo.codegen import Codegen
    from bytecode_dynamo.context import Context

Items = tuple[VariableTracker, ...]
SEQUENCE_METHODS = MethodTable("sequence")
LIST_METHODS = MethodTable("list", SEQUENCE_METHODS)


@dataclass(frozen=True, slots=True, eq=False)
class SequenceVariable(VariableTracker):
    """What tuples and lists share; ``items`` is read through :meth:`elements`."""

    def elements(self, ctx: Context) -> Items:
        """The trackers held now (perhaps lazy ones)."""
        raise NotImplementedError

    def same_kind(self, ctx: Context, items: Sequence[VariableTracker]) -> VariableTracker:
        """A new sequence of the built-in base type: what slicing and adding give."""
        raise NotImplementedError

    def methods(self) -> MethodTable:
        """Methods of the type."""
        return SEQUENCE_METHODS

    def as_constant(self, ctx: Context) -> Any:
        return self.python_type()([ctx.real(item).as_constant(ctx) for item in self.elements(ctx)])

    def as_proxy(self, ctx: Context) -> Any:
        return [ctx.real(item).as_proxy(ctx) for item in self.elements(ctx)]

    def as_fake(self, ctx: Context) -> Any:
        return [ctx.real(item).as_fake(ctx) for item in self.elements(ctx)]

    def has_method(self, name: str) -> bool:
        """Whether there is a rule for a method."""
        return self.methods().find(name) is not None

    def truth(self, ctx: Context) -> bool:
        return bool(self.elements(ctx))

    def length(self, ctx: Context) -> VariableTracker:
        return ConstantVariable(len(self.elements(ctx)))

    def unpack(self, ctx: Context) -> list[VariableTracker]:
        return [ctx.real(item) for item in self.elements(ctx)]

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if self.methods().find(name) is not None:
            return ctx.bound_rule(self, name)
        return ctx.class_attribute(self, self.python_type(), name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        rule = self.methods().find(name)
        if rule is None:
            return self.get_attr(ctx, name).call(ctx, args, kwargs)
        return rule(ctx, self, *args, **kwargs) or ctx.none

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        items = self.elements(ctx)
        index = ctx.index(key)
        if isinstance(index, slice):
            return self.same_kind(ctx, items[index])
        if not -len(items) <= index < len(items):
            return ctx.raise_error(IndexError, f"{self.python_type().__name__} index out of range")
        return ctx.real(items[index])


@dataclass(frozen=True, slots=True, eq=False)
class TupleVariable(SequenceVariable):
    """An immutable sequence: tuple, torch.Size, a named tuple, or a struct sequence of torch.return_types."""

    items: Items
    cls: type = tuple

    def python_type(self) -> type:
        return self.cls

    def elements(self, ctx: Context) -> Items:
        return self.items

    def same_kind(self, ctx: Context, items: Sequence[VariableTracker]) -> VariableTracker:
        return TupleVariable(tuple(items), torch.Size if self.cls is torch.Size else tuple)

    def as_constant(self, ctx: Context) -> Any:
        values = [ctx.real(item).as_constant(ctx) for item in self.items]
        return self._build(values)

    def _build(self, values: list[Any]) -> Any:
        if hasattr(self.cls, "_fields"):
            return tuple.__new__(self.cls, values)
        return self.cls(values)

    def as_proxy(self, ctx: Context) -> Any:
        return tuple(ctx.real(item).as_proxy(ctx) for item in self.items)

    def as_fake(self, ctx: Context) -> Any:
        return tuple(ctx.real(item).as_fake(ctx) for item in self.items)

    def hash_key(self, ctx: Context) -> Hashable:
        return tuple(ctx.real(item).hash_key(ctx) for item in self.items)

    def iterate(self, ctx: Context) -> VariableTracker:
        return ctx.iterator(self.items)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        index = _field_index(self.cls, name)
        if index is not None:
            return ctx.real(self.items[index])
        if self.cls is torch.Size and name == "numel":
            return ctx.bound_rule(self, "numel")
        if name == "_replace" and hasattr(self.cls, "_fields"):
            return ctx.bound_rule(self, "_replace")
        return SequenceVariable.get_attr(self, ctx, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "numel" and self.cls is torch.Size:
            return ctx.product(self.unpack(ctx))
        if name == "_replace":
            fields = dict(zip(self.cls._fields, self.items)) | kwargs  # pyright: ignore[reportAttributeAccessIssue]
            return TupleVariable(tuple(fields.values()), self.cls)
        if name == "_asdict":
            names = [ConstantVariable(field) for field in self.cls._fields]  # pyright: ignore[reportAttributeAccessIssue]
            return ctx.create_dict(list(zip(names, self.items)))
        return SequenceVariable.call_method(self, ctx, name, args, kwargs)

    def reconstruct(self, gen: Codegen) -> None:
        if self.cls is tuple:
            gen.build_tuple(self.items)
            return
        if hasattr(self.cls, "_fields"):
            gen.emitter.load_callee_const(tuple.__new__)
            gen.load_const(self.cls)
            gen.build_tuple(self.items)
            gen.emitter.call(2)
            return
        gen.emitter.load_callee_const(self.cls)
        gen.build_tuple(self.items)
        gen.emitter.call(1)


def _field_index(cls: type, name: str) -> int | None:
    fields = getattr(cls, "_fields", None)
    if fields is not None and name in fields and not isinstance(cls.__dict__.get(name), property):
        return fields.index(name)
    if cls.__module__ == "torch.return_types" and name not in dir(tuple):
        member = cls.__dict__.get(name)
        if member is not None:
            names = [key for key, value in cls.__dict__.items() if type(value) is type(member)]
            return names.index(name)
    return None


@dataclass(frozen=True, slots=True, eq=False)
class ListVariable(SequenceVariable):
    """A list or deque: the contents are in the effects."""

    key: Identity

    def python_type(self) -> type:
        return self.key.cls

    def identity(self) -> object:
        return self.key

    def methods(self) -> MethodTable:
        return LIST_METHODS if self.key.cls is not collections.deque else DEQUE_METHODS

    def elements(self, ctx: Context) -> Items:
        return ctx.effects.read(self.key)

    def replace(self, ctx: Context, items: Sequence[VariableTracker]) -> None:
        """Let the list hold other items."""
        ctx.effects.write(self.key, tuple(items))

    def same_kind(self, ctx: Context, items: Sequence[VariableTracker]) -> VariableTracker:
        return ctx.create_list(items)

    def iterate(self, ctx: Context) -> VariableTracker:
        return ctx.list_iterator(self)

    def set_item(self, ctx: Context, key: VariableTracker, value: VariableTracker) -> None:
        items = list(self.elements(ctx))
        index = ctx.index(key)
        try:
            items[index] = value.unpack(ctx) if isinstance(index, slice) else value  # pyright: ignore
        except (IndexError, ValueError) as error:
            ctx.raise_error(type(error), *error.args)
        self.replace(ctx, items)

    def del_item(self, ctx: Context, key: VariableTracker) -> None:
        items = list(self.elements(ctx))
        try:
            del items[ctx.index(key)]
        except IndexError as error:
            ctx.raise_error(IndexError, *error.args)
        self.replace(ctx, items)

    def reconstruct(self, gen: Codegen) -> None:
        gen.build_list(self)


@dataclass(frozen=True, slots=True, eq=False)
class RangeVariable(SequenceVariable):
    """``range`` with known bounds; symbolic bounds are specialised, for a loop over them is unrolled."""

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
        return ctx.fold(operator.getitem, [self, key], {})

    def iterate(self, ctx: Context) -> VariableTracker:
        return ctx.range_iterator(self.value)

    def reconstruct(self, gen: Codegen) -> None:
        gen.load_const(self.value)


# -- wrapping ---------------------------------------------------------------------------------------------------------


def lazy_items(value: Sequence[Any], source: Source) -> Items:
    """Items that are looked at when they are used."""
    return tuple(LazyVariable(item, source=ItemSource(source, index)) for index, item in enumerate(value))


@tracker_for(list)
def wrap_list(ctx: Context, value: list[Any], source: Source) -> VariableTracker:
    if type(value) is not list:
        return ctx.wrap_object(value, source)
    ctx.guards.require(source, GuardKind.TYPE_IS, list)
    ctx.guards.require(source, GuardKind.LENGTH, len(value))
    key = Identity(list, value, source)
    ctx.effects.set_initial(key, lazy_items(value, source))
    return ctx.effects.remember(value, ListVariable(key, source=source))


@tracker_for(collections.deque)
def wrap_deque(ctx: Context, value: collections.deque[Any], source: Source) -> VariableTracker:
    if type(value) is not collections.deque or value.maxlen is not None:
        return ctx.wrap_object(value, source)
    ctx.guards.require(source, GuardKind.TYPE_IS, collections.deque)
    ctx.guards.require(source, GuardKind.LENGTH, len(value))
    key = Identity(collections.deque, value, source)
    ctx.effects.set_initial(key, lazy_items(value, source))
    return ctx.effects.remember(value, ListVariable(key, source=source))


@tracker_for(tuple)
def wrap_tuple(ctx: Context, value: tuple[Any, ...], source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    ctx.guards.require(source, GuardKind.LENGTH, len(value))
    if type(value) is not tuple and type(value) is not torch.Size and not hasattr(type(value), "_fields"):
        return ctx.wrap_object(value, source)
    return ctx.effects.remember(value, TupleVariable(lazy_items(value, source), type(value), source=source))


@tracker_for(range)
def wrap_range(ctx: Context, value: range, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.EQUALS, value)
    return RangeVariable(value, source=source)


# -- methods ----------------------------------------------------------------------------------------------------------


@SEQUENCE_METHODS.register("__len__")
def sequence_len(ctx: Context, self: SequenceVariable) -> VariableTracker:
    return self.length(ctx)


@SEQUENCE_METHODS.register("__getitem__")
def sequence_getitem(ctx: Context, self: SequenceVariable, key: VariableTracker) -> VariableTracker:
    return self.get_item(ctx, key)


@SEQUENCE_METHODS.register("__contains__")
def sequence_contains(ctx: Context, self: SequenceVariable, item: VariableTracker) -> VariableTracker:
    return ConstantVariable(self.contains(ctx, item))


@SEQUENCE_METHODS.register("__iter__")
def sequence_iter(ctx: Context, self: SequenceVariable) -> VariableTracker:
    return self.iterate(ctx)


@SEQUENCE_METHODS.register("count")
def sequence_count(ctx: Context, self: SequenceVariable, item: VariableTracker) -> VariableTracker:
    return ConstantVariable(sum(ctx.equal(element, item) for element in self.unpack(ctx)))


@SEQUENCE_METHODS.register("index")
def sequence_index(ctx: Context, self: SequenceVariable, item: VariableTracker, *bounds: VariableTracker) -> VariableTracker:
    low, high, _ = slice(*(bound.as_constant(ctx) for bound in bounds), *(() if len(bounds) > 1 else (None,))).indices(
        len(self.elements(ctx))
    ) if bounds else (0, len(self.elements(ctx)), 1)  # fmt: skip
    for index, element in enumerate(self.unpack(ctx)[low:high]):
        if ctx.equal(element, item):
            return ConstantVariable(low + index)
    return ctx.raise_error(ValueError, f"{item.describe()} is not in {self.python_type().__name__}")


@LIST_METHODS.register("append")
def list_append(ctx: Context, self: ListVariable, item: VariableTracker) -> None:
    self.replace(ctx, (*self.elements(ctx), item))


@LIST_METHODS.register("extend", "__iadd__")
def list_extend(ctx: Context, self: ListVariable, items: VariableTracker) -> None:
    self.replace(ctx, (*self.elements(ctx), *items.unpack(ctx)))


@LIST_METHODS.register("insert")
def list_insert(ctx: Context, self: ListVariable, index: VariableTracker, item: VariableTracker) -> None:
    items = list(self.elements(ctx))
    items.insert(index.as_constant(ctx), item)
    self.replace(ctx, items)


@LIST_METHODS.register("pop")
def list_pop(ctx: Context, self: ListVariable, index: VariableTracker | None = None) -> VariableTracker:
    items = list(self.elements(ctx))
    at = -1 if index is None else index.as_constant(ctx)
    if not -len(items) <= at < len(items):
        return ctx.raise_error(IndexError, "pop from empty list" if not items else "pop index out of range")
    item = items.pop(at)
    self.replace(ctx, items)
    return ctx.real(item)


@LIST_METHODS.register("remove")
def list_remove(ctx: Context, self: ListVariable, item: VariableTracker) -> None:
    items = list(self.elements(ctx))
    for index, element in enumerate(items):
        if ctx.equal(ctx.real(element), item):
            del items[index]
            self.replace(ctx, items)
            return
    ctx.raise_error(ValueError, "list.remove(x): x not in list")


@LIST_METHODS.register("clear")
def list_clear(ctx: Context, self: ListVariable) -> None:
    self.replace(ctx, ())


@LIST_METHODS.register("reverse")
def list_reverse(ctx: Context, self: ListVariable) -> None:
    self.replace(ctx, self.elements(ctx)[::-1])


@LIST_METHODS.register("copy", "__copy__")
def list_copy(ctx: Context, self: ListVariable) -> VariableTracker:
    return ctx.create_list(self.elements(ctx), self.key.cls)


@LIST_METHODS.register("sort")
def list_sort(ctx: Context, self: ListVariable, **options: VariableTracker) -> None:
    self.replace(ctx, sort_items(ctx, self.unpack(ctx), options))


@LIST_METHODS.register("__setitem__")
def list_setitem(ctx: Context, self: ListVariable, key: VariableTracker, value: VariableTracker) -> None:
    self.set_item(ctx, key, value)


@LIST_METHODS.register("__delitem__")
def list_delitem(ctx: Context, self: ListVariable, key: VariableTracker) -> None:
    self.del_item(ctx, key)


DEQUE_METHODS = MethodTable("deque", LIST_METHODS)


@DEQUE_METHODS.register("appendleft")
def deque_appendleft(ctx: Context, self: ListVariable, item: VariableTracker) -> None:
    self.replace(ctx, (item, *self.elements(ctx)))


@DEQUE_METHODS.register("popleft")
def deque_popleft(ctx: Context, self: ListVariable) -> VariableTracker:
    if not self.elements(ctx):
        return ctx.raise_error(IndexError, "pop from an empty deque")
    return list_pop(ctx, self, ConstantVariable(0))  # pyright: ignore[reportReturnType]


@DEQUE_METHODS.register("extendleft")
def deque_extendleft(ctx: Context, self: ListVariable, items: VariableTracker) -> None:
    self.replace(ctx, (*reversed(items.unpack(ctx)), *self.elements(ctx)))


@DEQUE_METHODS.register("rotate")
def deque_rotate(ctx: Context, self: ListVariable, count: VariableTracker | None = None) -> None:
    rotated = collections.deque(self.elements(ctx))
    rotated.rotate(1 if count is None else count.as_constant(ctx))
    self.replace(ctx, tuple(rotated))


def sort_items(ctx: Context, items: list[VariableTracker], options: Kwargs) -> list[VariableTracker]:
    """Sort by keys that are known constants; the order of anything else depends on data."""
    no_keywords({name: value for name, value in options.items() if name not in ("key", "reverse")}, "sort")
    key = options.get("key")
    reverse = "reverse" in options and options["reverse"].truth(ctx)
    by: Callable[[VariableTracker], VariableTracker] = lambda item: item  # noqa: E731
    if key is not None and not (isinstance(key, ConstantVariable) and key.value is None):
        by = lambda item: key.call(ctx, [item], {})  # noqa: E731
    keys = [ctx.constant_of(by(item), "a sort key") for item in items]
    try:
        order = sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)
    except TypeError as error:
        ctx.raise_error(TypeError, *error.args)
        raise GraphBreak("BD007", "sort") from error
    return [items[index] for index in order]


__all__ = ["ListVariable", "RangeVariable", "SequenceVariable", "SliceVariable", "TupleVariable", "lazy_items", "sort_items"]
