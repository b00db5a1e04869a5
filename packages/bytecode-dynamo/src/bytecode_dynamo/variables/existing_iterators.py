"""Existing iterators and views of mappings: the container that they go over and the position in
it.
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
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import wrap_value
from bytecode_dynamo.state.tracker import VariableTracker

from .iterator import ItemsIterator, ListIterator, RangeIterator, ReversedIterator, UserIterator
from .lazy_iterator import CountIterator, FilterIterator, ZipIterator
from .mapping import DictViewVariable
from .proxy import ProxyVariable
from .userobject import UserObjectVariable, wrap_opaque
from .wrap import tracker_for


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


def _drives_loop(source: Source) -> bool:
    """Whether an iterator is on the stack after a break in its loop: its position must not be
    guarded, so that one graph serves every iteration.
    """
    return isinstance(source, LocalSource) and not source.variable.isidentifier()


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
def wrap_iterator(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """An iterator over a list, tuple, text or range."""
    if _drives_loop(source):
        return wrap_opaque(ctx, value, source, "which drives a loop")
    arguments, (container,), position = _reduce(ctx, value, source)
    key = Identity(type(value), value, source)
    base: Any = wrap_value(ctx, container, ItemSource(arguments, 0))
    iterator: VariableTracker
    if type(value) is type(iter([])):
        iterator = ListIterator(key, base=base, moves=ctx.effects.moves(base.key), source=source)
    elif isinstance(container, range):
        iterator = RangeIterator(key, value=container, source=source)
    else:
        iterator = ItemsIterator(key, items=tuple(base.unpack(ctx)), source=source)
    ctx.effects.set_initial(key, position or 0)
    return ctx.effects.remember(value, iterator)


@tracker_for(reversed, type(reversed([])))
def wrap_reversed(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """A backward iterator over a list, tuple or text."""
    if _drives_loop(source) or type(value.__reduce__()[1][0]) not in (list, tuple, str, bytes):
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
def wrap_combined(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """An iterator over other iterators."""
    if _drives_loop(source):
        return wrap_opaque(ctx, value, source, "which drives a loop")
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
