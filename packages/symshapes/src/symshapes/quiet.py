"""Keeps torch's meta functions from loading the incumbent compiler.

Many of torch's Python meta functions are wrapped so that their first call imports that compiler,
just to be marked as "not to be traced". Each wrapper asks for the marked function by ``getattr`` on
the function that it wraps. While one of our kernels runs, the wrappers' module has a ``getattr`` of
its own, by which an unmarked function stands for itself.
"""

from __future__ import annotations

from typing import Any

import torch._compile as wrappers

from .process import WhileAny

_SLOT = "__dynamo_disable"


def _marked(value: Any, name: str, default: Any) -> Any:
    return getattr(value, name, value if name == _SLOT else default)


def _begin() -> None:
    wrappers.getattr = _marked  # type: ignore[attr-defined]


def _end(before: None) -> None:
    del wrappers.getattr  # type: ignore[attr-defined]


quiet = WhileAny(_begin, _end)
