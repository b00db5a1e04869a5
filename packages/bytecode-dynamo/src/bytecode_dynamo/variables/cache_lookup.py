"""Reads ``functools.lru_cache`` without a call, so that nothing is counted or reordered."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from bytecode_dynamo.marker import Marker

LARGEST = 1000
"""The largest bounded cache that is searched; the search is linear."""

_TUPLES = (tuple, torch.Size)
_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.device)


NOT_CACHED: Any = Marker("not cached")


@dataclass(frozen=True)
class CacheLookup:
    """``lookup(cached, *arguments)``: the result that the cache holds for a call, or NOT_CACHED.

    The last arguments are those of the keywords ``names``.
    """

    names: tuple[str, ...] = ()

    @property
    def __name__(self) -> str:
        return "cached"

    def __call__(self, cached: Any, *arguments: Any) -> Any:
        held = gc.get_referents(cached)
        named = cached.__dict__
        entries = next(
            (item for item in reversed(held) if type(item) is dict and item is not named), None
        )
        if not entries:
            return NOT_CACHED
        key = self.key(cached, arguments, held)
        try:
            found = entries.get(key, NOT_CACHED)
        except TypeError:  # an argument can't be hashed
            return NOT_CACHED
        if found is NOT_CACHED or cached.cache_parameters()["maxsize"] is None:
            return found
        return _result(held, key, type(found)) if len(entries) <= LARGEST else NOT_CACHED

    def key(self, cached: Any, arguments: tuple[Any, ...], held: list[Any]) -> Hashable:
        """The cache's key of a call."""
        typed = cached.cache_parameters()["typed"]
        if (
            len(arguments) == 1
            and not self.names
            and not typed
            and type(arguments[0]) in (int, str)
        ):
            return arguments[0]
        count = len(arguments) - len(self.names)
        key = arguments[:count]
        if self.names:
            mark = next(item for item in reversed(held) if type(item) is object)
            key = (
                *key,
                mark,
                *(part for pair in zip(self.names, arguments[count:]) for part in pair),
            )
        return (*key, *map(type, arguments)) if typed else key


def _result(held: list[Any], key: Hashable, link: type) -> Any:
    """The result in a bounded cache, whose links hold key, result and type."""
    for place in range(2, len(held)):
        if held[place] is link and _is_same(held[place - 2], key):
            return held[place - 1]
    return NOT_CACHED


def _is_same(one: Any, other: Any) -> bool:
    """Whether keys are equal; tensors are compared by identity."""
    if type(one) not in _TUPLES or type(other) not in _TUPLES:
        return type(one) is type(other) and type(one) in (int, str) and one == other
    return len(one) == len(other) and all(
        a is b
        or (type(a) in _PLAIN and type(b) in _PLAIN and a == b)
        or (type(a) in _TUPLES and _is_same(a, b))
        for a, b in zip(one, other)
    )


def is_key(value: Any) -> TypeGuard[Hashable]:
    """Whether a value is plain, or equal to itself only as a key."""
    if type(value) in _TUPLES:
        return all(map(is_key, value))
    cls: Any = type(value)
    by_identity = cls.__hash__ in (object.__hash__, type.__hash__) and cls.__eq__ in (
        object.__eq__,
        type.__eq__,
    )
    return cls in _PLAIN or by_identity or isinstance(value, (torch.Tensor, torch.dtype))


_counted: weakref.WeakKeyDictionary[Any, set[Hashable]] = weakref.WeakKeyDictionary()


def count_early(cached: Any, names: tuple[str, ...], arguments: tuple[Any, ...]) -> None:
    """Note a call made while capturing, which the cache has counted."""
    _counted.setdefault(cached, set()).add(_digest(names, arguments))


def is_counted(cached: Any, names: tuple[str, ...], arguments: tuple[Any, ...]) -> bool:
    """Whether a call was made while capturing and not yet by generated code."""
    return _digest(names, arguments) in _counted.get(cached, ())


def recall(names: tuple[str, ...], cached: Any, *arguments: Any) -> None:
    """Called by generated code: repeat a call with a known result so that the cache counts it,
    unless capture made it.
    """
    due = _counted.get(cached)
    if due and (digest := _digest(names, arguments)) in due:
        due.discard(digest)
        return
    call_cached(cached, names, arguments)


def call_cached(function: Any, names: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    """``function`` of arguments, of which the last ones are those of the keywords ``names``."""
    count = len(arguments) - len(names)
    return function(*arguments[:count], **dict(zip(names, arguments[count:])))


def _digest(names: tuple[str, ...], arguments: tuple[Any, ...]) -> Hashable:
    return (names, *map(_by_identity, arguments))


def _by_identity(value: Any) -> Hashable:
    """A plain value, a tuple of such, or the identity of an object."""
    if type(value) in _TUPLES:
        return tuple(map(_by_identity, value))
    return value if type(value) in _PLAIN else id(value)
