"""Keeps torch's meta functions from loading the incumbent compiler.

Many Python meta functions in torch have a wrapper whose first call imports that compiler, only to
mark the function as "not to be traced". The wrapper looks the marked function up with ``getattr``.
While one of our kernels runs, a ``getattr`` in the wrappers' module returns the unmarked function.
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
