"""Existing iterators, and views of mappings, by what lies under them: the container and the place
in it.
"""

from __future__ import annotations

import collections
import gc
import itertools
import sys
import types
from typing import Any

from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import AppliedSource, ItemSource, LocalSource, Source
from bytecode_dynamo.reconstruction.iterator_words import PLACES, cycle_position, held_by, words_of
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import new_iterator, wrap_value
from bytecode_dynamo.state.tracker import VariableTracker

from .iterator import ItemsIterator, ListIterator, RangeIterator, ReversedIterator, UserIterator
from .lazy_iterator import (
    ChainIterator,
    CountIterator,
    CycleIterator,
    EnumerateIterator,
    FilterIterator,
    IsliceIterator,
    RepeatIterator,
    ZipIterator,
)
from .mapping import DictViewVariable
from .proxy import ProxyVariable
from .userobject import UserObjectVariable, wrap_opaque
from .wrap import tracker_for


class ReducedSource(AppliedSource):
    """How an iterator would be built again: ``(iter, (container,), place)``,
    ``(zip, (iterators...))``.
    """

    function = staticmethod(lambda iterator: iterator.__reduce__())
    text = "{}.__reduce__()"


def numbers_of_count(count: itertools.count) -> tuple[Any, ...]:
    """The next number and the step.

    ``__reduce__`` says so, too, but warns from CPython 3.12 on. By Modules/itertoolsmodule.c a
    count holds both as objects, or only the step where that is 1 and the next number fits into a
    machine's word.
    """
    held = tuple(number for number in gc.get_referents(count) if number is not itertools.count)
    return held if len(held) == 2 else (_word_of_count(count), *held)


def _word_of_count(count: itertools.count) -> int:
    text = repr(count).removeprefix("count(").removesuffix(")")
    return sys.maxsize if text == "<NULL>" else int(text)  # the largest word is printed so


class HeldSource(AppliedSource):
    """What an iterator goes over."""

    function = staticmethod(held_by)
    text = "held_by({})"


class WordsSource(AppliedSource):
    """The place of an iterator that it does not tell."""

    function = staticmethod(words_of)
    text = "words_of({})"


class CountedSource(AppliedSource):
    """The next number of a count, and its step."""

    function = staticmethod(numbers_of_count)
    text = "numbers_of_count({})"


class ViewedSource(AppliedSource):
    """The mapping that a view shows."""

    function = staticmethod(lambda view: gc.get_referents(view)[0])
    text = "viewed({})"


def _drives_loop(source: Source) -> bool:
    """Whether an iterator is on the stack after a break in its loop: one graph is to serve every
    turn.
    """
    return isinstance(source, LocalSource) and not source.variable.isidentifier()


def _reduced(ctx: Context, value: Any, source: Source) -> tuple[Source, Any]:
    found = value.__reduce__()
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    ctx.guards.require(ReducedSource(source), GuardKind.LENGTH, len(found))
    ctx.guards.require(ItemSource(ReducedSource(source), 0), GuardKind.IDENTITY, found[0])
    return ItemSource(ReducedSource(source), 1), found


@tracker_for(*(type(iter(held)) for held in ([], (), "", "\u00e9", b"", range(0))))
def wrap_iterator(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """An iterator over a list, tuple, text or range."""
    if _drives_loop(source):
        return wrap_opaque(ctx, value, source, "which drives a loop")
    given, (_, (held,), *place) = _reduced(ctx, value, source)
    if place:
        ctx.guards.require(ItemSource(ReducedSource(source), 2), GuardKind.EQUALS, place[0])
    key = Identity(type(value), value, source)
    base: Any = wrap_value(ctx, held, ItemSource(given, 0))
    made: VariableTracker
    if type(value) is type(iter([])):
        made = ListIterator(key, base=base, moves=ctx.effects.moves(base.key), source=source)
    elif isinstance(held, range):
        made = RangeIterator(key, value=held, source=source)
    else:
        made = ItemsIterator(key, items=tuple(base.unpack(ctx)), source=source)
    ctx.effects.set_initial(key, (place and place[0]) or 0)
    return ctx.effects.remember(value, made)


@tracker_for(reversed, type(reversed([])))
def wrap_reversed(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A backward iterator over a list, tuple or text."""
    held, *place = value.__reduce__()[1:]
    if _drives_loop(source) or type(held[0]) not in (list, tuple, str, bytes):
        return wrap_opaque(ctx, value, source, "which is reversed")
    given, _ = _reduced(ctx, value, source)
    if place:
        ctx.guards.require(ItemSource(ReducedSource(source), 2), GuardKind.EQUALS, place[0])
    key = Identity(type(value), value, source)
    made = ReversedIterator(key, base=wrap_value(ctx, held[0], ItemSource(given, 0)), source=source)
    ctx.effects.set_initial(key, place[0] if place else -1)
    return ctx.effects.remember(value, made)


@tracker_for(itertools.count)
def wrap_count(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A count by its next number and its step."""
    ctx.guards.require(source, GuardKind.TYPE_IS, itertools.count)
    numbers = CountedSource(source)
    start, step = (
        wrap_value(ctx, number, ItemSource(numbers, at))
        for at, number in enumerate(numbers_of_count(value))
    )
    key = Identity(itertools.count, value, source)
    made = CountIterator(key, start=start, step=step, source=source)
    return ctx.effects.remember(value, made)


def _stepped(value: Any) -> VariableTracker:
    """An object that is an iterator already, and is not asked for one again."""
    return UserIterator(value) if isinstance(value, UserObjectVariable) else value


@tracker_for(*PLACES)
def wrap_placed(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """An iterator that does not tell its place."""
    held, place = held_by(value), words_of(value) if type(value) in PLACES else None
    if _drives_loop(source) or place is None or place[:1] == (sys.maxsize,):
        return wrap_opaque(ctx, value, source, "an iterator whose place is not known")
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    ctx.guards.require(HeldSource(source), GuardKind.LENGTH, len(held))
    for at, word in enumerate(place):
        ctx.guards.require(ItemSource(WordsSource(source), at), GuardKind.EQUALS, word)
    parts = [
        wrap_value(ctx, part, ItemSource(HeldSource(source), at)) for at, part in enumerate(held)
    ]
    key = Identity(type(value), value, source)
    base = _stepped(parts[0]) if parts else new_iterator(ctx, [])
    if isinstance(base, UserIterator) and isinstance(value, (itertools.cycle, itertools.islice)):
        return wrap_opaque(
            ctx, value, source, "which lets go of an iterator of the program's when that ends"
        )
    made: VariableTracker
    if isinstance(value, itertools.chain):
        made = ChainIterator(key, base=base, source=source)
        ctx.effects.set_initial(key, tuple(map(_stepped, parts[1:])))
    elif isinstance(value, itertools.cycle):
        made = CycleIterator(key, base=base, saved=parts[-1], source=source)
        ctx.effects.set_initial(key, cycle_position(value))
    elif isinstance(value, itertools.islice):
        following, stop, step, taken = place
        made = IsliceIterator(
            key, base=base, bounds=(following, None if stop < 0 else stop, step), source=source
        )
        ctx.effects.set_initial(key, taken)
    elif isinstance(value, enumerate):
        made = EnumerateIterator(key, base=base, source=source)
        ctx.effects.set_initial(key, *place)
    else:
        made = RepeatIterator(
            key, item=parts[0], times=None if place[0] < 0 else place[0], source=source
        )
    return ctx.effects.remember(value, made)


@tracker_for(zip, map, filter)
def wrap_combined(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """An iterator over other iterators."""
    if _drives_loop(source):
        return wrap_opaque(ctx, value, source, "which drives a loop")
    given, (_, parts, *strict) = _reduced(ctx, value, source)
    ctx.guards.require(given, GuardKind.LENGTH, len(parts))
    held = [_stepped(wrap_value(ctx, part, ItemSource(given, at))) for at, part in enumerate(parts)]
    key = Identity(type(value), value, source)
    if type(value) is zip:
        made: VariableTracker = ZipIterator(
            key, parts=tuple(held), strict=bool(strict), source=source
        )
    elif type(value) is map:
        made = ZipIterator(key, parts=tuple(held[1:]), function=held[0], source=source)
    elif type(value) is filter:
        made = FilterIterator(
            key, base=held[1], function=None if held[0].is_none else held[0], source=source
        )
    else:
        return wrap_opaque(ctx, value, source, "an iterator of a class of its own")
    return ctx.effects.remember(value, made)


def _wrap_view(kind: str) -> Any:
    def rule(ctx: Context, value: Any, source: Source) -> VariableTracker:
        ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
        base: Any = wrap_value(ctx, gc.get_referents(value)[0], ViewedSource(source))
        base = getattr(base, "contents", base)
        return ctx.effects.remember(value, DictViewVariable(base, kind, source=source))

    return rule


for _kind in ("keys", "values", "items"):
    for _cls in (dict, collections.OrderedDict):
        tracker_for(type(getattr(_cls(), _kind)()))(_wrap_view(_kind))


@tracker_for(types.MappingProxyType)
def wrap_proxy(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A read-only view of a mapping."""
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    base = wrap_value(ctx, gc.get_referents(value)[0], ViewedSource(source))
    return ctx.effects.remember(value, ProxyVariable(base, source=source))
