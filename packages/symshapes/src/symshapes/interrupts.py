"""Signals during compilation: handlers run only at safe points.

Python may run a signal handler between any two instructions. If it raises there, a mode may be half
entered, or a caller that catches every exception may take the error for its own. Inside
``deferred`` the main thread only records signals; their handlers run at the next ``check()`` or at
the end. A handler's exception travels as ``Interrupted``, which is no ``Exception``, and
``deferred`` raises the original. Handlers see torch's state from before, so no trace records them.

One thread at a time is inside ``deferred``: torch's dispatcher fills tables in Python that two
tracing threads would fill twice, which it refuses, and tracing holds the GIL anyway. Code that may
wait for another thread runs in ``allowed``, in ``unlocked``, or outside.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .process import OneThread

_C: Any = torch._C
Handler = Callable[[int, FrameType | None], Any]


class Interrupted(BaseException):
    """Carries a signal handler's exception out of a compilation."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class _State:
    """This thread's dispatch state, except torch-function modes."""

    def __init__(self) -> None:
        self.keys = _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()
        self.modes = _C._len_torch_dispatch_stack()
        self.functions = _C._is_torch_function_enabled()
        self.grad, self.inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restores this state, without dispatch modes entered since."""
        with ExitStack() as stack:
            if not self.modes and _C._len_torch_dispatch_stack():
                stack.enter_context(_disable_current_modes())
            if torch.is_inference_mode_enabled() != self.inference:
                stack.enter_context(torch.inference_mode(self.inference))
            if self.functions and not _C._is_torch_function_enabled():
                stack.enter_context(_C._EnableTorchFunction())
            stack.enter_context(torch.set_grad_enabled(self.grad))
            stack.enter_context(_C._ForceDispatchKeyGuard(*self.keys))
            yield


_NUMBERS = tuple(int(number) for number in signal.valid_signals())


class _Signals:
    """The program's handlers and the pending signals; only the main thread runs handlers."""

    def __init__(self) -> None:
        self.depth = 0
        self.handlers: dict[int, Handler] = {}
        self.pending: list[tuple[int, FrameType | None]] = []
        self.outside = _State()

    def note(self, number: int, frame: FrameType | None) -> None:
        self.pending.append((number, frame))

    def replace(self) -> None:
        for number in _NUMBERS:
            handler: Any = signal.getsignal(number)
            if (
                callable(handler)
                and handler != self.note
                and not isinstance(handler, signal.Handlers)
            ):
                self.handlers[number] = handler
                signal.signal(number, self.note)

    def restore(self) -> None:
        """Reinstalls all handlers, even when one of them runs meanwhile and raises."""
        try:
            while self.handlers:
                number, handler = next(iter(self.handlers.items()))
                if signal.getsignal(number) == self.note:
                    signal.signal(number, handler)
                self.handlers.pop(number, None)
        finally:
            if self.handlers:
                self.restore()

    def run(self, handlers: dict[int, Handler]) -> None:
        """Runs the handlers of all pending signals, even when one raises."""
        try:
            while self.pending:
                number, frame = self.pending.pop(0)
                handler = handlers.get(number)
                if handler is not None:
                    handler(number, frame)
        finally:
            if self.pending:
                self.run(handlers)


_signals = _Signals()
_compiling = OneThread()
unlocked = _compiling.released
"""Inside ``deferred``: other threads may compile meanwhile."""


@contextmanager
def deferred() -> Iterator[None]:
    """Waits until no other thread compiles; defers the main thread's signals to the next
    ``check()`` or the end of the outer block.
    """
    if threading.current_thread() is not threading.main_thread() or _signals.depth:
        with _compiling.held():
            yield
        return
    known: dict[int, Handler] = {}
    try:
        _signals.depth = 1
        _signals.outside = _State()
        _signals.replace()
        known = dict(_signals.handlers)
        with _compiling.held(check):
            yield
    except Interrupted as interrupted:
        raise interrupted.error from None
    finally:
        _signals.depth = 0
        try:
            _signals.restore()
        finally:
            _signals.run(known)


@contextmanager
def allowed() -> Iterator[None]:
    """Inside ``deferred``: user code is interrupted by signals as usual, and other threads may
    compile meanwhile.
    """
    with unlocked():
        if not _signals.depth or threading.current_thread() is not threading.main_thread():
            yield
            return
        known = dict(_signals.handlers)
        try:
            _signals.restore()
            _signals.depth = 0
            _signals.run(known)
            yield
        finally:
            _signals.depth = 1
            _signals.replace()


def check() -> None:
    """Runs the handlers of pending signals; raises Interrupted with their exception."""
    if not _signals.pending or threading.current_thread() is not threading.main_thread():
        return
    try:
        with _signals.outside.restored():
            _signals.run(_signals.handlers)
    except BaseException as error:
        raise Interrupted(error) from None


def is_of_handler(error: BaseException) -> bool:
    """Whether a signal handler raised ``error``: its function is in the traceback."""
    handlers = [*_signals.handlers.values(), *map(signal.getsignal, signal.valid_signals())]
    codes = [code for handler in handlers for code in _codes(handler)]
    # by identity: generated code objects are unhashable
    return any(frame.f_code is code for frame, _ in walk_tb(error.__traceback__) for code in codes)


def _codes(handler: Any) -> Iterator[CodeType]:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if callable(handler) and not isinstance(handler, signal.Handlers):
        handler = getattr(handler, "__func__", handler)
        for function in (handler, vars(type(handler)).get("__call__")):
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                yield code
