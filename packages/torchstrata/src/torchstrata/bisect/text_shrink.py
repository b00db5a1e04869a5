"""Smaller sizes and plainer dtypes, by rewriting the text of a graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from .cuts import Part
from .repro import Repro

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_DTYPES = {
    "bf16": "f32",
    "f16": "f32",
    "f64": "f32",
    "bfloat16": "float32",
    "float16": "float32",
    "float64": "float32",
}
SMALLEST = 2


def shrink_text(repro: Repro, fails: Callable[[Part], bool]) -> Repro:
    """The repro with the smallest sizes and plainest dtypes that still fail."""

    def holds(candidate: Repro) -> bool:
        try:
            return fails(candidate.part())
        except Exception:
            return False  # not every text is a program

    if not holds(repro):
        return repro  # its text alone does not show it
    for size in sorted(_sizes(repro), reverse=True):
        for smaller in _smaller(size):
            candidate = _with_size(repro, size, smaller)
            if candidate is not None and holds(candidate):
                repro = candidate
                break
    candidate = _with_plain_dtypes(repro)
    return candidate if candidate is not None and holds(candidate) else repro


def _sizes(repro: Repro) -> set[int]:
    return {
        size
        for _, value in repro.inputs
        if isinstance(value, torch.Tensor)
        for size in value.shape
        if size > SMALLEST
    }


def _smaller(size: int) -> Iterator[int]:
    """Sizes to try, the smallest first."""
    found = SMALLEST
    while found < size:
        yield found
        found *= 2


def _with_size(repro: Repro, size: int, smaller: int) -> Repro | None:
    """The repro with every ``size`` in its text replaced, and its inputs cut."""
    text = _NUMBER.sub(
        lambda found: str(smaller) if int(found[0]) == size else found[0], repro.text
    )
    inputs = [(name, _cut(value, size, smaller)) for name, value in repro.inputs]
    if any(
        isinstance(value, torch.Tensor) and size in value.shape
        for value in repro.constants.values()
    ):
        return None
    return replace(repro, text=text, inputs=inputs)


def _cut(value: Any, size: int, smaller: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return smaller if value == size and type(value) is int else value
    part = value.detach()[tuple(slice(smaller) if n == size else slice(None) for n in value.shape)]
    dense = part.clone(memory_format=torch.preserve_format)
    if dense.dtype in (torch.int64, torch.int32) and dense.numel() and int(dense.max()) < size:
        dense = dense.clamp(max=smaller - 1)
    return dense.requires_grad_(value.requires_grad)


def _with_plain_dtypes(repro: Repro) -> Repro | None:
    text = re.sub("|".join(rf"\b{name}\b" for name in _DTYPES), lambda m: _DTYPES[m[0]], repro.text)
    if text == repro.text:
        return None
    inputs = [
        (name, value.detach().float().requires_grad_(value.requires_grad))
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else (name, value)
        for name, value in repro.inputs
    ]
    return replace(repro, text=text, inputs=inputs)
