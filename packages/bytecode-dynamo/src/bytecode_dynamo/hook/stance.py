"""The stance of the process, and whether graph breaks of this thread are errors."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from symshapes.suggestion import did_you_mean

from bytecode_dynamo.errors import UserError

from .frame_hook import set_force_eager

STANCES = (
    "default",
    "force_eager",
    "eager_on_recompile",
    "fail_on_recompile",
    "eager_then_compile",
)


class _Current(threading.local):
    strict = False


_thread = _Current()
_stance = "default"


def current_stance() -> str:
    """The stance of the process."""
    return _stance


def breaks_are_errors() -> bool:
    """Whether ``error_on_graph_break(True)`` is in force in this thread."""
    return _thread.strict


def _apply(stance: str) -> str:
    global _stance
    before, _stance = _stance, stance
    set_force_eager(stance == "force_eager")
    return before


class set_stance:
    """Choose how optimized functions run, from now on, for a ``with`` block, or (as decorator) for
    calls of a function.

    - "default": compile when nothing compiled fits.
    - "force_eager": call the original functions; what was compiled stays in the caches.
    - "eager_on_recompile": use what is compiled and fits, else run in eager mode.
    - "fail_on_recompile": use what is compiled and fits, else raise ``RecompileError``.
    - "eager_then_compile": run the first call in eager mode and compile at the second; sizes and
      numbers that differ between the two are symbolic at once.

    The stance belongs to the process, not to a thread. Raises UserError for another name.
    """

    def __init__(self, stance: str = "default") -> None:
        if stance not in STANCES:
            raise UserError(
                f"stance must be one of {', '.join(map(repr, STANCES))}, not {stance!r}"
                f"{'; ' if (hint := did_you_mean(stance, STANCES)) else ''}{hint.strip()}"
            )
        self.stance = stance
        self.before = _apply(stance)

    def __enter__(self) -> None:
        _apply(self.stance)

    def __exit__(self, *exception: object) -> None:
        _apply(self.before)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        _apply(self.before)

        @functools.wraps(function)
        def with_stance(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self.stance):
                return function(*args, **kwargs)

        return with_stance


class error_on_graph_break:
    """``with error_on_graph_break(True):`` graph breaks inside raise Unsupported; with False they
    are allowed again.

    Works inside and around captured code, and as a decorator. ``fullgraph=True`` wins over False.
    Raises UserError when the argument is not a bool.
    """

    def __init__(self, error: bool) -> None:
        if not isinstance(error, bool):
            raise UserError(f"error_on_graph_break takes True or False, not {error!r}")
        self.error = error
        self.before = False

    def __enter__(self) -> None:
        self.before, _thread.strict = _thread.strict, self.error

    def __exit__(self, *exception: object) -> None:
        _thread.strict = self.before

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def strictly(*args: Any, **kwargs: Any) -> Any:
            with error_on_graph_break(self.error):
                return function(*args, **kwargs)

        strictly.__dict__["_error_on_graph_break"] = self.error
        return strictly


STRICT_WRAPPER = error_on_graph_break(True)(lambda: None).__code__
