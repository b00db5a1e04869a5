"""Nested tuples, lists and dicts of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def leaves(argument: Any) -> Iterator[Any]:
    """The leaves of nested tuples, lists and dicts of arguments, in order."""
    if isinstance(argument, tuple | list | dict):
        for item in argument.values() if isinstance(argument, dict) else argument:
            yield from leaves(item)
    else:
        yield argument


def map_leaves(function: Callable[[Any], object], argument: Any) -> Any:
    """``argument`` with ``function`` applied to each leaf."""
    if isinstance(argument, tuple | list):
        return type(argument)(map_leaves(function, item) for item in argument)
    if isinstance(argument, dict):
        return {key: map_leaves(function, item) for key, item in argument.items()}
    return function(argument)
