"""Results that the interpreter refuses, and wording of its errors that differs between versions."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any

from bytecode_dynamo.errors import GraphBreak, ObservedException
from bytecode_dynamo.marker import Verbatim
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import get_attribute, raise_error
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, Kwargs, Variable
from .constant import ConstantVariable


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


Accepts = Callable[[type, Any], bool]


def _exactly(cls: type) -> Accepts:
    return lambda kind, value: kind is cls


ACCEPTED: dict[str, Accepts] = {
    **dict.fromkeys(
        ("__len__", "__length_hint__"),
        lambda kind, value: kind is int and 0 <= (value or 0) <= sys.maxsize,
    ),
    **dict.fromkeys(("__int__", "__index__"), _exactly(int)),
    **dict.fromkeys(("__str__", "__repr__", "__format__", "__fspath__"), _exactly(str)),
    "__bool__": _exactly(bool),
    "__float__": _exactly(float),
    "__complex__": _exactly(complex),
    "__bytes__": _exactly(bytes),
    "__hash__": lambda kind, value: kind in (int, bool),
    "__iter__": lambda kind, value: hasattr(kind, "__next__"),
    "__init__": _exactly(type(None)),
}
"""Whether the interpreter accepts a result of a type and a value (None: unknown) as it is."""


def accepted(name: str, result: VariableTracker) -> VariableTracker:
    """The result of a special method called by the interpreter; breaks where eager mode refuses or
    converts it.
    """
    accepts = ACCEPTED.get(name)
    value = result.value if isinstance(result, ConstantVariable) else None
    if accepts is not None and not accepts(result.python_type(), value):
        raise GraphBreak("BD007", f"{name} that gives {result.describe()}")
    return result


@dataclass(frozen=True, slots=True, eq=False)
class SpecialMethodVariable(Variable):
    """A bound special method, called as the interpreter does."""

    method: VariableTracker
    name: str

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return accepted(self.name, self.method.call(ctx, args, kwargs))
