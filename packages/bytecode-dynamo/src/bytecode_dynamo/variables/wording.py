"""Wording of errors that differs between CPython versions, found by provoking them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable
from typing import Any

from bytecode_dynamo.errors import ObservedException
from bytecode_dynamo.marker import Verbatim
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import get_attribute, raise_error
from bytecode_dynamo.state.tracker import VariableTracker


def _message(function: Callable[..., Any], *args: Any) -> str:
    try:
        function(*args)
    except Exception as error:
        return str(error)
    raise AssertionError(f"{function} did not raise")


def _unpack_two(items: Any) -> None:
    _, _ = items


_SAYS_HOW_MANY = "got" in _message(_unpack_two, (1, 2, 3))
_SAYS_WHERE_HASHED = "dict key" in _message({}.__setitem__, [], None)


def not_found(cls: type, method: str, item: str) -> str:
    """The error text of ``index`` or ``remove`` for a missing item, given as text."""
    base = next(base for base in (list, tuple, deque) if issubclass(cls, base))
    return _message(getattr(base(), method), Verbatim(item))


def too_many_values(expected: int, items: VariableTracker, ctx: Context) -> str:
    """The error text for unpacking too many items."""
    got = ""
    if _SAYS_HOW_MANY and items.python_type() in (list, tuple, dict):
        got = f", got {items.length(ctx).as_constant(ctx)}"
    return f"too many values to unpack (expected {expected}{got})"


def no_pair(at: int) -> str:
    """The error text of ``dict`` for an element that is not iterable."""
    return _message(dict, [*[((), ())] * at, 0])


def hashed_as(
    ctx: Context, use: str, item: VariableTracker, keys: Collection[Hashable] | None = None
) -> Hashable:
    """The hash key for a lookup, as a ``dict key`` or ``set element``; errors of its hash name the
    use.
    """
    try:
        return item.hash_key(ctx) if keys is None else item.hash_among(ctx, keys)
    except ObservedException as raised:
        if not _SAYS_WHERE_HASHED or raised.value.python_type() is not TypeError:
            raise
        args = get_attribute(ctx, raised.value, "args").as_constant(ctx)
    cls = item.python_type()
    name = (
        cls.__qualname__
        if cls.__module__ in ("builtins", "__main__")
        else f"{cls.__module__}.{cls.__qualname__}"
    )
    return raise_error(ctx, TypeError, f"cannot use '{name}' as a {use} ({TypeError(*args)})")
