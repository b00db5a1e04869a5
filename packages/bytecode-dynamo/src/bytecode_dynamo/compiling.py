"""The state of the process while any thread captures."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .config import config

_C: Any = torch._C
_rest_saved_tensor_hooks = _C._autograd._saved_tensors_hooks_set_tracing


class _Process:
    """What belongs to the process while any thread captures: torch's flag, and the limit on recursion."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.captures = 0
        self.before = (False, 0)

    def enter(self) -> None:
        with self.lock:
            if not self.captures:
                self.before = torch.compiler._is_compiling_flag, sys.getrecursionlimit()
                torch.compiler._is_compiling_flag = True
                # Evaluating a call takes some ten calls.
                sys.setrecursionlimit(self.before[1] + 20 * config.inline_depth)
            self.captures += 1

    def leave(self) -> None:
        with self.lock:
            self.captures -= 1
            if not self.captures:
                torch.compiler._is_compiling_flag = self.before[0]
                sys.setrecursionlimit(self.before[1])

    def recursion_limit(self) -> int:
        """The limit that the program set."""
        return self.before[1] if self.captures else sys.getrecursionlimit()


_process = _Process()
recursion_limit = _process.recursion_limit


@contextmanager
def compiling() -> Iterator[None]:
    """``torch.compiler.is_compiling()`` is True inside, and hooks on saved tensors rest."""
    _process.enter()
    # What fake tensors save for backward is not the program's: its hooks on saved tensors must not see it.
    hooked = _rest_saved_tensor_hooks(True)
    try:
        yield
    finally:
        _rest_saved_tensor_hooks(hooked)
        _process.leave()


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside, the garbage collector rests: what compiling makes lives until its end, so passes over it, and over all objects of
    the program, would find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
