"""Existing iterators and views of mappings: the container that they go over and the position in
it.
"""

from __future__ import annotations

import collections
import gc
import itertools
import operator
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import AppliedSource, ItemSource, LocalSource, Source
from bytecode_dynamo.marker import Marker
from bytecode_dynamo.reconstruction.rebuilding import (
    CONTENTS_WRITERS,
    DICT_VIEWS,
    dict_below,
    entries_passed,
)
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING, Identity
from bytecode_dynamo.state.protocol import wrap_value
from bytecode_dynamo.state.tracker import VariableTracker

from .iterator import (
    ItemsIterator,
    ListIterator,
    RangeIterator,
    ReversedIterator,
    UserIterator,
    iterate_keys,
)
from .lazy_iterator import CountIterator, EnumerateIterator, FilterIterator, ZipIterator
from .mapping import DictViewVariable
from .proxy import ProxyVariable
from .userobject import OpaqueVariable, UserObjectVariable, wrap_opaque
from .wrap import Wrapper, tracker_for, wrap_object


class ReducedSource(AppliedSource):
    """What ``__reduce__`` returns: ``(iter, (container,), index)``, ``(zip, (iterators...))``."""

    function = staticmethod(lambda iterator: iterator.__reduce__())
    text = "{}.__reduce__()"


def count_state(count: itertools.count) -> tuple[Any, ...]:
    """The next number and the step.

    ``__reduce__`` has both, but warns from CPython 3.12 on and is gone in 3.14. A count refers to
    both as objects, or only to the step where that is 1 and the next number fits into a C
    ``Py_ssize_t`` (Modules/itertoolsmodule.c).
    """
    numbers = tuple(number for number in gc.get_referents(count) if number is not itertools.count)
    if len(numbers) == 2:
        return numbers
    text = repr(count).removeprefix("count(").removesuffix(")")
    # repr prints the largest Py_ssize_t like this
    return (sys.maxsize if text == "<NULL>" else int(text), *numbers)


class CountSource(AppliedSource):
    """The next number of a count, and its step."""

    function = staticmethod(count_state)
    text = "count_state({})"


class ViewedSource(AppliedSource):
    """The mapping that a view shows."""

    function = staticmethod(lambda view: gc.get_referents(view)[0])
    text = "viewed({})"

    @property
    def shown(self) -> str:
        return self.base.shown


_ROUNDS, _ADVANCED = Marker("rounds"), Marker("advanced")


@dataclass(frozen=True, slots=True, eq=False)
class DrivingIterator(OpaqueVariable):
    """The iterator of a loop that is entered in the middle: after a break in its body, or in the
    frame of a comprehension. Its position is guarded only if the loop goes on in the graph.
    """

    rule: Wrapper | None = None
    value: Any = None

    def next(self, ctx: Context) -> VariableTracker | None:
        if not ctx.unrolls or self.rule is None:
            return OpaqueVariable.next(self, ctx)
        advanced = ctx.effects.read((_ADVANCED, self.source))
        if advanced is MISSING:
            assert self.source is not None
            advanced = self.rule(ctx, self.value, self.source)
            ctx.effects.write((_ADVANCED, self.source), advanced)
        item = advanced.next(ctx)
        if item is not None:
            ctx.effects.write((_ROUNDS, self.source), self.rounds(ctx) + 1)
        return item

    def rounds(self, ctx: Context) -> int:
        """The number of rounds in this graph."""
        return ctx.effects.read((_ROUNDS, self.source), 0)


def breaks_each_round(ctx: Context, stack: Sequence[VariableTracker]) -> bool:
    """Whether a graph breaks in the first round of a loop that goes on after a break: then the
    loop's rounds share graphs that end where it is advanced.
    """
    return any(isinstance(held, DrivingIterator) and held.rounds(ctx) == 1 for held in stack)


def _may_drive(rule: Wrapper) -> Wrapper:
    def wrap(ctx: Context, value: Any, source: Source) -> VariableTracker:
        if not isinstance(source, LocalSource) or source.variable.isidentifier():
            return rule(ctx, value, source)
        ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
        what = f"the {type(value).__name__} of a loop whose body breaks the graph"
        made = DrivingIterator(type(value), what, rule, value, source=source)
        return ctx.effects.remember(value, made)

    return wrap


def _reduce(ctx: Context, value: Any, source: Source) -> tuple[Source, Any, Any]:
    """The source and values of the arguments in ``__reduce__()``, and the state (None without
    one); guards the iterator's type and the state.
    """
    function, arguments, *state = value.__reduce__()
    reduced = ReducedSource(source)
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    ctx.guards.require(reduced, GuardKind.LENGTH, 2 + len(state))
    ctx.guards.require(ItemSource(reduced, 0), GuardKind.IDENTITY, function)
    if state:
        ctx.guards.require(ItemSource(reduced, 2), GuardKind.EQUALS, state[0])
    return ItemSource(reduced, 1), arguments, state[0] if state else None


@tracker_for(*(type(iter(base)) for base in ([], (), "", "\u00e9", b"", range(0))))
@_may_drive
def wrap_iterator(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """An iterator over a list, tuple, text or range."""
    arguments, (container,), position = _reduce(ctx, value, source)
    key = Identity(type(value), value, source)
    base: Any = wrap_value(ctx, container, ItemSource(arguments, 0))
    iterator: VariableTracker
    if type(value) is type(iter([])):
        iterator = ListIterator(key, base=base, moves=ctx.effects.moves(base.key), source=source)
    elif isinstance(container, range):
        left = container[position or 0 :]
        iterator, position = RangeIterator(key, value=left, source=source), -len(left)
    else:
        iterator = ItemsIterator(key, items=tuple(base.unpack(ctx)), source=source)
    ctx.effects.set_initial(key, position or 0)
    return ctx.effects.remember(value, iterator)


@tracker_for(reversed, type(reversed([])))
@_may_drive
def wrap_reversed(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A backward iterator over a list, tuple or text."""
    if type(value.__reduce__()[1][0]) not in (list, tuple, str, bytes):
        return wrap_opaque(ctx, value, source, "which is reversed")
    arguments, (container,), index = _reduce(ctx, value, source)
    key = Identity(type(value), value, source)
    base = wrap_value(ctx, container, ItemSource(arguments, 0))
    ctx.effects.set_initial(key, -1 if index is None else index)
    return ctx.effects.remember(value, ReversedIterator(key, base=base, source=source))


@tracker_for(itertools.count)
def wrap_count(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A count by its next number and its step."""
    ctx.guards.require(source, GuardKind.TYPE_IS, itertools.count)
    start, step = (
        wrap_value(ctx, number, ItemSource(CountSource(source), index))
        for index, number in enumerate(count_state(value))
    )
    key = Identity(itertools.count, value, source)
    return ctx.effects.remember(value, CountIterator(key, start=start, step=step, source=source))


@tracker_for(zip, map, filter)
@_may_drive
def wrap_combined(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """An iterator over other iterators."""
    if type(value) not in (zip, map, filter):
        return wrap_opaque(ctx, value, source, "an iterator of a subclass")
    arguments, values, strict = _reduce(ctx, value, source)
    ctx.guards.require(arguments, GuardKind.LENGTH, len(values))
    parts = []
    for index, part in enumerate(values):
        wrapped = wrap_value(ctx, part, ItemSource(arguments, index))
        # iter() has been called on it already
        parts.append(UserIterator(wrapped) if isinstance(wrapped, UserObjectVariable) else wrapped)
    key = Identity(type(value), value, source)
    iterator: VariableTracker
    if type(value) is zip:
        iterator = ZipIterator(key, parts=tuple(parts), strict=bool(strict), source=source)
    elif type(value) is map:
        iterator = ZipIterator(key, parts=tuple(parts[1:]), function=parts[0], source=source)
    else:
        function, base = parts
        iterator = FilterIterator(
            key, base=base, function=None if function.is_none else function, source=source
        )
    return ctx.effects.remember(value, iterator)


@tracker_for(types.GeneratorType)
def wrap_generator(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A generator, which does not tell where it stands."""
    made = _may_drive(wrap_object)(ctx, value, source)
    return replace(made, rule=None) if isinstance(made, DrivingIterator) else made


def _has_place(iterator: Any) -> bool:
    """Whether an iterator can be set to a place wherever it stands, or only advances such ones.

    ``enumerate`` can only be moved by advancing it, and so all below it once more.
    """
    if type(iterator) is zip:
        return all(map(_has_place, iterator.__reduce__()[1]))
    if type(iterator) is enumerate:
        return _has_place(iterator.__reduce__()[1][0])
    return type(iterator) in CONTENTS_WRITERS and type(iterator) is not itertools.count


@tracker_for(enumerate)
@_may_drive
def wrap_enumerate(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """``enumerate`` by its iterator and the next number."""
    if type(value) is not enumerate:
        return wrap_opaque(ctx, value, source, "an iterator of a subclass")
    if not _has_place(value):
        return wrap_opaque(ctx, value, source, "whose iterator can't be moved back")
    arguments, (iterator, index), _ = _reduce(ctx, value, source)
    ctx.guards.require(ItemSource(arguments, 1), GuardKind.EQUALS, index)
    key = Identity(enumerate, value, source)
    base = wrap_value(ctx, iterator, ItemSource(arguments, 0))
    ctx.effects.set_initial(key, index)
    return ctx.effects.remember(value, EnumerateIterator(key, base=base, source=source))


@tracker_for(*DICT_VIEWS)
@_may_drive
def wrap_dict_iterator(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """An iterator over a dict or its view by the dict and the number of entries passed."""
    passed, key = entries_passed(value), Identity(type(value), value, source)
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    if dict_below(value) is None:
        same = Answer("the dict of {}", dict_below, None, operator.is_)
        ctx.guards.require(source, GuardKind.CUSTOM, same)
        return ctx.effects.remember(value, ItemsIterator(key, source=source))
    if passed is None:
        return wrap_opaque(ctx, value, source, "whose dict was changed")
    same = Answer("the number of entries that {} passed", entries_passed, passed)
    ctx.guards.require(source, GuardKind.CUSTOM, same)
    base: Any = wrap_value(ctx, dict_below(value), ViewedSource(source))
    base, kind = getattr(base, "contents", base), DICT_VIEWS[type(value)].__name__
    made: Any = iterate_keys(ctx, base if kind == "keys" else DictViewVariable(base, kind))
    ctx.effects.set_initial(key, passed)
    return ctx.effects.remember(value, replace(made, key=key, source=source))


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
