"""Which optimizer serves a function, module or method: with equal options, the one before.

An optimizer serves again while something that it compiled lives: the attributes of what is compiled
are the program's, so nothing is kept there.
"""

from __future__ import annotations

import types
import weakref
from typing import Any


class Targets:
    """What one optimizer compiles, without keeping it alive."""

    def __init__(self) -> None:
        self._references: list[Any] = []

    def __contains__(self, target: Any) -> bool:
        found = (reference() for reference in self._references)
        if isinstance(target, types.MethodType):  # each access gives another object
            return any(isinstance(one, types.MethodType) and one == target for one in found)
        return any(one is target for one in found)

    def add(self, target: Any) -> None:
        """Note a target, unless it can't be referred to weakly."""
        self._references = [one for one in self._references if one() is not None]
        make: Any = weakref.WeakMethod if isinstance(target, types.MethodType) else weakref.ref
        try:
            self._references.append(make(target))
        except TypeError:
            pass


_living: weakref.WeakSet[Any] = weakref.WeakSet()


def forget_optimizers() -> None:
    """Let every target get a new optimizer, which has learned nothing."""
    _living.clear()


def optimizer_for(target: Any, new: Any) -> Any:
    """The optimizer that compiled ``target`` with the options of ``new``, else ``new``."""
    if target in new.targets or not new.is_shared:
        return new
    for one in list(_living):
        if target in one.targets and one.has_options_of(new):
            return one
    new.targets.add(target)
    _living.add(new)
    return new
