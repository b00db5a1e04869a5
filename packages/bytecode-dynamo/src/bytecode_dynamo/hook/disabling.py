"""``disable``: functions that run in eager mode whatever calls them."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, overload

from bytecode_dynamo.errors import UserError

from .frame_hook import activate, never_intercept
from .policy import DISABLED


@overload
def disable(
    fn: Callable[..., Any], recursive: bool = True, *, reason: str | None = None
) -> Callable[..., Any]: ...
@overload
def disable(
    fn: None = None, recursive: bool = True, *, reason: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def disable(
    fn: Callable[..., Any] | None = None, recursive: bool = True, *, reason: str | None = None
) -> Any:
    """Run a function in eager mode; with ``recursive=False`` the functions it calls are captured
    again.

    ``reason`` is shown where a graph breaks for it. Raises UserError for something that can't be
    called.
    """
    if fn is None:
        return lambda target: disable(target, recursive, reason=reason)
    if not callable(fn):
        raise UserError(f"disable needs something that can be called, not {type(fn).__name__}")
    mark = reason or True
    if not recursive:
        inner = innermost_function(fn)
        if inner is not None:
            never_intercept(inner)
            inner.__dict__[DISABLED] = mark
        return fn

    @functools.wraps(fn, updated=("__dict__",) if isinstance(fn, types.FunctionType) else ())
    def disabled(*args: Any, **kwargs: Any) -> Any:
        with activate(None):
            return fn(*args, **kwargs)

    never_intercept(disabled)
    disabled.__dict__[DISABLED] = mark
    return disabled


def innermost_function(target: Any) -> types.FunctionType | None:
    """The Python function that a call of ``target`` starts with."""
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, types.MethodType):
        target = target.__func__
    if isinstance(target, types.FunctionType):
        return target
    call = getattr(type(target), "__call__", None)  # noqa: B004 - the function itself is wanted
    return call if isinstance(call, types.FunctionType) else None
