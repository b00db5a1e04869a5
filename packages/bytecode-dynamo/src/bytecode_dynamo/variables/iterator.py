"""Iterators. Their positions are stored in the effects, so restoring a snapshot rewinds them."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bytecode_dynamo.errors import GraphBreak, ObservedException
from bytecode_dynamo.polyfills.iterators import advanced
from bytecode_dynamo.reconstruction.rebuilding import EXHAUSTED, move_list_iterator
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING, Identity
from bytecode_dynamo.state.protocol import (
    class_attribute,
    next_item,
    raise_error,
    until_stop,
)
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, BoundRuleVariable, KeyedVariable, Kwargs, Variable, realize
from .constant import ConstantVariable
from .sequence import ListVariable, new_tuple


@dataclass(frozen=True, slots=True, eq=False)
class IteratorVariable(KeyedVariable):
    """Base of iterators; subclasses say how to advance."""

    kept_when_built: ClassVar[bool] = True

    def iterate(self, ctx: Context) -> VariableTracker:
        return self

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name in ("__next__", "__iter__"):
            return BoundRuleVariable(self, name)
        return class_attribute(ctx, self, self.key.cls, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "__iter__":
            return self
        if name == "__next__":
            return next_item(ctx, self)
        if name == "__length_hint__":
            raise GraphBreak("BD007", "__length_hint__ of an iterator")
        return self.get_attr(ctx, name).call(ctx, args, kwargs)

    def position(self, ctx: Context) -> int:
        """The number of steps taken."""
        return ctx.effects.read(self.key, 0)

    def advance(self, ctx: Context, position: int) -> None:
        """Set the number of steps taken."""
        ctx.effects.write(self.key, position)


def remaining(gen: ValueBuilder, iterator: IteratorVariable) -> list[VariableTracker]:
    """The remaining items of an iterator, which is not advanced."""
    ctx = gen.ctx
    mark, graph = ctx.effects.mark(), ctx.graph.mark()
    try:
        items = iterator.unpack(ctx)
    except ObservedException:
        raise GraphBreak("BD015", f"{iterator.describe()} raises when it is advanced") from None
    if ctx.graph.mark() != graph:
        raise GraphBreak("BD015", f"{iterator.describe()} computes tensors when it is advanced")
    written = list(ctx.effects.written_since(mark))
    if not all(isinstance(key, Identity) and issubclass(key.cls, Iterator) for key in written):
        raise GraphBreak("BD015", f"{iterator.describe()} has effects when it is advanced")
    result = ctx.effects.read((iterator.key, "result"))
    ctx.effects.rollback(mark)
    if result is not MISSING:
        ctx.effects.set_initial((iterator.key, "result"), result)
    return items


@dataclass(frozen=True, slots=True, eq=False)
class ItemsIterator(IteratorVariable):
    """Over fixed items: those of a tuple, or of the constant ``base``."""

    items: tuple[VariableTracker, ...] = ()
    base: VariableTracker | None = None

    def next(self, ctx: Context) -> VariableTracker | None:
        at = self.position(ctx)
        if at >= len(self.items):
            return None
        self.advance(ctx, at + 1)
        return realize(ctx, self.items[at])

    def reconstruct(self, gen: ValueBuilder) -> None:
        position = self.position(gen.ctx)
        if self.base is None:
            gen.call_const(iter, new_tuple(self.items[position:]))
        else:
            iterate = reversed if self.key.cls is reversed else iter
            gen.call_const(advanced, position, iterate, self.base)


@dataclass(frozen=True, slots=True, eq=False)
class CombinationsIterator(ItemsIterator):
    """Over the items of ``itertools.product`` and its relatives, called on fixed operands."""

    operands: tuple[VariableTracker, ...] = ()
    options: tuple[tuple[str, VariableTracker], ...] = ()

    def reconstruct(self, gen: ValueBuilder) -> None:
        steps = self.position(gen.ctx)
        function = ConstantVariable(advanced)
        head = map(ConstantVariable, (steps, self.key.cls))
        gen.call(function, [*head, *self.operands], self.options)


@dataclass(frozen=True, slots=True, eq=False)
class LiveIterator(IteratorVariable):
    """Over a container that may change while it is iterated over."""

    base: Any = None
    moves: object = None
    """What :meth:`Effects.moves` of the container was at the start; None for something fixed."""

    def has_moved(self, ctx: Context) -> bool:
        """Whether items were added, removed or moved since."""
        return self.moves is not None and ctx.effects.moves(self.base.key) is not self.moves

    def rebuild(self, gen: ValueBuilder, function: Callable[..., Any], *arguments: object) -> None:
        """Push the result of a function that creates an iterator over the container."""
        key = self.base.key
        # existing objects are changed afterwards
        if self.has_moved(gen.ctx) or (key.exists and self.moves is not MISSING):
            raise GraphBreak("BD015", f"an iterator over a {key.cls.__name__} that was changed")
        if key.shell is not None and not key.exists:
            key.shell.complete(gen)
        gen.call_const(function, *arguments)


@dataclass(frozen=True, slots=True, eq=False)
class KeysIterator(LiveIterator):
    """Over a dict, a view of one, or a set."""

    count: int = 0
    backward: bool = False
    listed: list[Any] = field(default_factory=list)
    """The contents that were listed last, and their items: listing takes as long as the loop."""

    def next(self, ctx: Context) -> VariableTracker | None:
        at, ordered = self.position(ctx), issubclass(self.base.key.cls, collections.OrderedDict)
        if at > self.count or (at == self.count and ordered):
            return None
        items, moved = self._items(ctx), self.has_moved(ctx)
        if ordered and moved and items:
            return raise_error(ctx, RuntimeError, "OrderedDict mutated during iteration")
        if not ordered and len(items) != self.count:
            return raise_error(ctx, RuntimeError, f"{self.base.noun} changed size during iteration")
        if moved:  # the slots of keys in the hash table decide what comes next
            raise GraphBreak(
                "BD015", f"a {self.base.key.cls.__name__} whose keys changed in a loop over it"
            )
        self.advance(ctx, at + 1)
        if at == self.count:
            return None  # items added from now on are not noticed
        return realize(ctx, items[-1 - at if self.backward else at])

    def _items(self, ctx: Context) -> Sequence[VariableTracker]:
        contents = ctx.effects.read(self.base.key)
        if not self.listed or self.listed[0] is not contents:
            self.listed[:] = contents, self.base.unpack_lazy(ctx)
        return self.listed[1]

    def reconstruct(self, gen: ValueBuilder) -> None:
        iterate = reversed if self.backward else iter
        self.rebuild(gen, advanced, self.position(gen.ctx), iterate, self.base)


@dataclass(frozen=True, slots=True, eq=False)
class ListIterator(LiveIterator):
    """Over a list, which may change meanwhile, or a deque, which may not."""

    def next(self, ctx: Context) -> VariableTracker | None:
        at = self.position(ctx)
        items = self.base.elements(ctx)
        if self.has_moved(ctx):
            return raise_error(ctx, RuntimeError, "deque mutated during iteration")
        if at >= len(items):
            if at != EXHAUSTED:
                self.advance(ctx, EXHAUSTED)
            return None
        self.advance(ctx, at + 1)
        return realize(ctx, items[at])

    def reconstruct(self, gen: ValueBuilder) -> None:
        self.rebuild(gen, list_iterator_at, self.base, self.position(gen.ctx))


def list_iterator_at(items: Any, position: int) -> Any:
    """An iterator over a list or deque that was advanced; called by generated code."""
    if not isinstance(items, list):
        return advanced(position, iter, items)
    iterator = iter(items)
    move_list_iterator(iterator, position)
    return iterator


@dataclass(frozen=True, slots=True, eq=False)
class ReversedIterator(LiveIterator):
    """Backward over a list, which may change meanwhile, a deque, which may not, or an immutable
    sequence. The position is the next index.
    """

    def next(self, ctx: Context) -> VariableTracker | None:
        at, items = self.position(ctx), self.base.unpack(ctx)
        if at < 0:
            return None
        moved = self.has_moved(ctx)
        found = at < len(items) and not moved
        self.advance(ctx, at - 1 if found else -1)
        if moved:
            return raise_error(ctx, RuntimeError, "deque mutated during iteration")
        return realize(ctx, items[at]) if found else None

    def reconstruct(self, gen: ValueBuilder) -> None:
        self.rebuild(gen, reversed_at, self.base, self.position(gen.ctx))


def reversed_at(items: Any, index: int) -> Any:
    """A backward iterator over a list or deque at an index; called by generated code."""
    if not isinstance(items, list):
        return advanced(len(items) - 1 - index, reversed, items)
    iterator: Any = reversed(items)
    iterator.__setstate__(index)
    return iterator


@dataclass(frozen=True, slots=True, eq=False)
class RangeIterator(IteratorVariable):
    """Over a range. Its position counts from the range's end, so it is negative until then: where
    an iterator started is not known from CPython 3.12 on (Objects/rangeobject.c).
    """

    value: range = range(0)

    def position(self, ctx: Context) -> int:
        return ctx.effects.read(self.key, -len(self.value))

    def next(self, ctx: Context) -> VariableTracker | None:
        at = self.position(ctx)
        if not at:
            return None
        self.advance(ctx, at + 1)
        return ConstantVariable(self.value[at])

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(iter, self.value[len(self.value) + self.position(gen.ctx) :])


@dataclass(frozen=True, slots=True, eq=False)
class UserIterator(Variable):
    """An object with ``__next__`` written in Python."""

    base: VariableTracker

    def python_type(self) -> type:
        return self.base.python_type()

    def identity(self) -> object:
        return self.base.identity()

    def truth(self, ctx: Context) -> bool:
        return self.base.truth(ctx)

    def iterate(self, ctx: Context) -> VariableTracker:
        return self

    def next(self, ctx: Context) -> VariableTracker | None:
        return until_stop(lambda: self.base.call_method(ctx, "__next__", [], {}))

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        return self.base.get_attr(ctx, name)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen(self.base)


@protocol.new_iterator.implement
def _new_iterator(
    ctx: Context, items: Sequence[VariableTracker], base: VariableTracker | None = None
) -> VariableTracker:
    """An iterator over fixed items, which may be those of a constant."""
    iterated = base.value if isinstance(base, ConstantVariable) else ()
    return ItemsIterator(Identity(type(iter(iterated))), items=tuple(items), base=base)


def iterate_keys(ctx: Context, base: Any, backward: bool = False) -> VariableTracker:
    """An iterator over a dict, a view of one, or a set."""
    count = len(base.unpack_lazy(ctx))
    empty = base.example()
    return KeysIterator(
        Identity(type(reversed(empty) if backward else iter(empty))),
        base=base,
        count=count,
        moves=ctx.effects.moves(base.key),
        backward=backward,
    )


@protocol.iterate_list.implement
def _iterate_list(ctx: Context, base: ListVariable) -> VariableTracker:
    """An iterator over a list or deque."""
    return ListIterator(
        Identity(type(iter(base.key.cls()))), base=base, moves=ctx.effects.moves(base.key)
    )


@protocol.iterate_range.implement
def _iterate_range(ctx: Context, value: range) -> VariableTracker:
    """An iterator over a range."""
    return RangeIterator(Identity(type(iter(range(0)))), value=value)
