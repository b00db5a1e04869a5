"""``except*`` and methods of exception groups, as Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def match(error: Any, kind: Any) -> tuple[Any, Any]:
    """The rest of an exception and the part that an ``except* kind`` clause handles."""
    if isinstance(error, BaseExceptionGroup):
        handled, rest = split(error, kind)
        return rest, handled
    if isinstance(error, kind):
        return None, BaseExceptionGroup("", [error])
    return error, None


def raised_again(error: Any, raised: list[Any]) -> Any:
    """The exception that leaves a ``try`` with ``except*`` clauses; ``raised``: those of the
    clauses and the unhandled rest.
    """
    if not isinstance(error, BaseExceptionGroup):
        return raised[0]
    found = [one for one in raised if one is not None]
    new = [one for one in found if one.__context__ is not error.__context__]
    kept = [one for one in found if one.__context__ is error.__context__]
    if kept:
        left = [leaf for one in kept for leaf in _leaves(one)]
        new.append(split(error, lambda leaf: any(leaf is one for one in left))[0])
    if len(new) > 1:
        return BaseExceptionGroup("", new)
    return new[0] if new else None


def split(group: Any, condition: Any) -> tuple[Any, Any]:
    """``group.split(condition)``: a class, a tuple of classes or a function of an exception."""
    wanted: Callable[[Any], Any] = (
        condition
        if callable(condition) and not isinstance(condition, type)
        else lambda error: isinstance(error, condition)
    )
    if wanted(group):
        return group, None
    inside: list[Any] = []
    outside: list[Any] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            handled, rest = split(error, wanted)
        else:
            handled, rest = (error, None) if wanted(error) else (None, error)
        inside += [] if handled is None else [handled]
        outside += [] if rest is None else [rest]
    return _part(group, inside), _part(group, outside)


def subgroup(group: Any, condition: Any) -> Any:
    """``group.subgroup(condition)``."""
    return split(group, condition)[0]


def derive(group: Any, errors: Any) -> Any:
    """``group.derive(errors)``."""
    return BaseExceptionGroup(group.message, errors)


def _part(group: Any, errors: list[Any]) -> Any:
    if not errors:
        return None
    made = group.derive(errors)
    made.__context__, made.__cause__ = group.__context__, group.__cause__
    if hasattr(group, "__notes__"):
        made.__notes__ = list(group.__notes__)
    return made


def _leaves(error: Any) -> list[Any]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for one in error.exceptions for leaf in _leaves(one)]
