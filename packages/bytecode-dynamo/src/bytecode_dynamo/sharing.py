"""Which optimizer serves a function, module or method: with equal options, the one before.

A function keeps its optimizers, and with them what was compiled, as code objects do for
``torch.compile``. Other objects don't, since their attributes are the program's: there an optimizer
serves again while something that it compiled lives.
"""

from __future__ import annotations

import types
import weakref
from typing import Any

KEPT = 8
"""How many optimizers a function keeps: a new backend for each call must not pile up."""
_NAME = "_bytecode_dynamo_optimizers"


class _Kept:
    """A function's optimizers, in its ``__dict__``. Wrappers get a copy of that, which they
    ignore; copies and pickles have None.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self.function = weakref.ref(function)
        self.optimizers: list[Any] = []
        _kept.add(self)

    def __reduce__(self) -> Any:
        return type(None), ()


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
_kept: weakref.WeakSet[_Kept] = weakref.WeakSet()


def forget_optimizers() -> None:
    """Let every target get a new optimizer, which has learned nothing."""
    _living.clear()
    for kept in list(_kept):
        kept.optimizers.clear()


def optimizer_for(target: Any, new: Any) -> Any:
    """The optimizer that compiled ``target`` with the options of ``new``, else ``new``."""
    if target in new.targets or not new.is_shared:
        return new
    kept = _kept_by(target) if isinstance(target, types.FunctionType) else None
    known = list(_living) if kept is None else kept
    for one in known:
        if target in one.targets and one.has_options_of(new):
            return one
    new.targets.add(target)
    if kept is None:
        _living.add(new)
    else:
        kept.append(new)
        del kept[:-KEPT]
    return new


def _kept_by(function: types.FunctionType) -> list[Any]:
    kept = function.__dict__.get(_NAME)
    if not isinstance(kept, _Kept) or kept.function() is not function:
        kept = function.__dict__[_NAME] = _Kept(function)
    return kept.optimizers


def forget_kept(namespace: dict[str, Any]) -> None:
    """Remove what ``functools.update_wrapper`` copied."""
    namespace.pop(_NAME, None)
