"""The state of the process while any thread captures."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from symshapes import WhileAny

from bytecode_dynamo.config import config

_C: Any = torch._C
_rest_saved_tensor_hooks = _C._autograd._saved_tensors_hooks_set_tracing


def _begin() -> tuple[bool, int]:
    before = torch.compiler._is_compiling_flag, sys.getrecursionlimit()
    torch.compiler._is_compiling_flag = True
    # evaluating one call takes about ten
    sys.setrecursionlimit(before[1] + 20 * config.inline_depth)
    return before


def _end(before: tuple[bool, int]) -> None:
    torch.compiler._is_compiling_flag = before[0]
    sys.setrecursionlimit(before[1])


_capturing = WhileAny(_begin, _end)
"""torch's compiling flag and the recursion limit while any thread captures."""


def recursion_limit() -> int:
    """The recursion limit that the program set."""
    before = _capturing.before
    return before[1] if before is not None else sys.getrecursionlimit()


@contextmanager
def compiling() -> Iterator[None]:
    """``torch.compiler.is_compiling()`` is True inside, and saved-tensor hooks are disabled."""
    # The program's saved-tensor hooks must not see what fake tensors save for backward.
    hooked = _rest_saved_tensor_hooks(True)
    try:
        with _capturing:
            yield
    finally:
        _rest_saved_tensor_hooks(hooked)


def _stop_collecting() -> bool:
    enabled = gc.isenabled()
    gc.disable()
    return enabled


def _collect_again(enabled: bool) -> None:
    if enabled:
        gc.enable()


uncollected = WhileAny(_stop_collecting, _collect_again)
"""Disables the garbage collector inside: objects of a compilation live until its end, so passes
over the heap would find nothing.
"""
