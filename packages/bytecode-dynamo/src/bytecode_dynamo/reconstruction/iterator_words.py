"""The places of built-in iterators that neither tell nor take them: machine words in the objects.

By Objects/listobject.c, Objects/enumobject.c and Modules/itertoolsmodule.c, in words after the
object's header, the same from CPython 3.11 to 3.14: an iterator over a list begins with its index,
which ``__setstate__`` cuts at the end of the list as it is now; an enumerate begins with its index;
a chain has what it is at second (NULL: nothing); a cycle has the index into what it saved third
(from 3.14 on, -1 while it saves); a repeat has the times that are left second (-1: endless); an
islice has, from the second on, the place of its next item, its stop (-1: none), its step, and how
many items it took.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from typing import Any

EXHAUSTED = sys.maxsize
PLACES: dict[type, range] = {
    enumerate: range(1),
    itertools.cycle: range(2, 3),
    itertools.repeat: range(1, 2),
    itertools.islice: range(1, 5),
    itertools.chain: range(0),
}


def words_of(iterator: Any) -> tuple[int, ...]:
    """The place of an iterator."""
    return tuple(_word(iterator, at).value for at in PLACES[type(iterator)])


def held_by(iterator: Any) -> tuple[Any, ...]:
    """What an iterator goes over: nothing once it has ended; of a cycle the list of what it saved,
    too, at the end.
    """
    return tuple(held for held in gc.get_referents(iterator) if held is not type(iterator))


def _word(iterator: Any, at: int) -> ctypes.c_ssize_t:
    return ctypes.c_ssize_t.from_address(
        id(iterator) + object.__basicsize__ + at * ctypes.sizeof(ctypes.c_ssize_t)
    )


def move_index(target: Any, index: int) -> None:
    """Let an enumerate or an iterator over a list, unless that has ended, give what is at an index
    next.
    """
    if not held_by(target):
        return
    _word(target, 0).value = index
    if index == EXHAUSTED:
        next(target, None)


def move_repeat(target: Any, times: int) -> None:
    """Let a repeat have given its item so many times more."""
    _word(target, 1).value -= times


SAVES = _word(itertools.cycle(()), 2).value


def cycle_position(iterator: Any) -> int:
    """The index into what a cycle saved, inverted while it saves."""
    index = _word(iterator, 2).value
    return ~index if SAVES == 0 and len(held_by(iterator)) > 1 else index


def move_cycle(target: Any, index: int) -> None:
    """Let a cycle go on at an index (inverted while it saves) of what it saved, once its iterator
    has ended.
    """
    _word(target, 2).value = max(index, ~index + SAVES)


def move_islice(target: Any, taken: int) -> None:
    """Let an islice have taken so many items."""
    place, stop, step, _ = words_of(target)
    _word(target, 1).value = following(taken, place, None if stop < 0 else stop, step)
    _word(target, 4).value = taken


def following(taken: int, place: int, stop: int | None, step: int) -> int:
    """The place of the next item of an islice, of which one was at ``place``, that took so many
    items.
    """
    found = place + max(-(-(taken - place) // step), 0) * step
    return found if stop is None else min(found, stop)


def move_chain(target: Any, active: list[Any]) -> None:
    """Let a chain go over what it is at: an iterator, or nothing."""
    if not held_by(target):
        return
    place = _word(target, 1)
    before, place.value = place.value, id(active[0]) if active else 0
    for item in active:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))
    if before:
        ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(before))


def chain_at(source: Any, *active: Any) -> Any:
    """A chain that goes over what is active, then over what the source gives."""
    return itertools.chain.from_iterable(itertools.chain(active, source) if active else source)


def cycle_at(iterator: Any, saved: list[Any], index: int) -> Any:
    """A cycle that goes on with an iterator, then at an index (inverted while it saves) of what it
    saved.
    """
    made = itertools.cycle(iterator)
    held_by(made)[-1].extend(saved)
    move_cycle(made, index)
    return made
