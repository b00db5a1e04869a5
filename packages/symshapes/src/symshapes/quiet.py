"""Keeps torch's meta functions from loading the incumbent compiler.

Many of torch's Python meta functions are wrapped so that their first call imports that compiler, just to be marked as
"not to be traced". Each wrapper keeps the marked function in an attribute of the function that it wraps. While one
of our kernels runs, that attribute holds the function itself; afterwards it is removed again.
"""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch._compile as torch_compile

_SLOT = "__dynamo_disable"
_decorate = torch_compile._disable_dynamo
_wrapper_code = _decorate(lambda: None).__code__  # type: ignore[union-attr]
_position = _wrapper_code.co_freevars.index("fn")


class _Quiet:
    """Reentrant, thread-safe context: see the module docstring."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._modules_seen = 0
        self._around: set[str] = set()
        self._known: dict[int, Callable[..., Any]] = {}
        self._set: list[Callable[..., Any]] = []

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth > 1:
                return
            if len(sys.modules) != self._modules_seen:
                self._look_around()
            for function in self._known.values():
                self._mark(function)
            torch_compile._disable_dynamo = self._decorate_quietly  # for modules imported by a kernel

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            torch_compile._disable_dynamo = _decorate
            for function in self._set:
                if getattr(function, _SLOT, None) is function:
                    delattr(function, _SLOT)
            self._set.clear()

    def _mark(self, function: Callable[..., Any]) -> None:
        if getattr(function, _SLOT, None) is None:
            try:
                setattr(function, _SLOT, function)
            except AttributeError:
                return
            self._set.append(function)

    def _look_around(self) -> None:
        """Only modules around torch that were loaded since can have made new wrappers."""
        self._modules_seen = len(sys.modules)
        around = {name for name in sys.modules if name.startswith("torch") and not name.startswith("torchstrata")}
        if not around <= self._around:
            self._scan()
        self._around = around

    def _scan(self) -> None:
        """Finds the wrappers made so far."""
        for candidate in gc.get_referrers(_wrapper_code):
            if type(candidate) is types.FunctionType:
                wrapped = candidate.__closure__[_position].cell_contents  # type: ignore[index]
                self._known[id(wrapped)] = wrapped

    def _decorate_quietly(self, fn: Any = None, recursive: bool = True) -> Any:
        wrapper = _decorate(fn, recursive)  # type: ignore[arg-type]
        if fn is not None:
            with self._lock:
                self._known[id(fn)] = fn
                self._mark(fn)
        return wrapper


quiet = _Quiet()
