"""Keeps torch's meta functions from loading the incumbent compiler.

Many of torch's Python meta functions are wrapped so that their first call imports that compiler, just to be marked as
"not to be traced". Each wrapper asks for the marked function by ``getattr`` on the function that it wraps. While one of our
kernels runs, the wrappers' module has a ``getattr`` of its own, by which an unmarked function stands for itself.
"""

from __future__ import annotations

import threading
from typing import Any

import torch._compile as wrappers

_SLOT = "__dynamo_disable"


def _marked(value: Any, name: str, default: Any) -> Any:
    return getattr(value, name, value if name == _SLOT else default)


class _Quiet:
    """Reentrant, thread-safe context: see the module docstring."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            wrappers.getattr = _marked  # type: ignore[attr-defined]

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                del wrappers.getattr  # type: ignore[attr-defined]


quiet = _Quiet()
