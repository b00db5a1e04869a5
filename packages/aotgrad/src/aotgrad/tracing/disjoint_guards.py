"""Guards under which two tensors of one storage stay disjoint when symbolic sizes change."""

from __future__ import annotations

from typing import Any

import torch

from .functional import layout_numbers, size_hint

_Steps = list[tuple[Any, Any]]
"""Sizes and strides in bytes, including the bytes of an element as a dimension."""


def guard_disjoint(a: torch.Tensor, b: torch.Tensor) -> None:
    """Adds guards under which two tensors that are disjoint with the example's sizes are disjoint
    with other sizes too.

    If no comparison of their bounds proves it, the guards fix sizes, strides and offsets to those
    of the example.
    """
    for t in (a, b):
        if not size_hint(t.numel()):
            _guard(t.numel() == 0)
            return
    steps, other = _steps(a), _steps(b)
    distance = b.storage_offset() * b.element_size() - a.storage_offset() * a.element_size()
    while not _guard_in_order(_length(steps), distance, _length(other)):
        stride = max((s for _, s in (*steps, *other)), key=size_hint, default=0)
        steps, other = _without(stride, steps), _without(stride, other)
        offset = _offset_in_row(_length(steps), distance, _length(other), stride)
        if offset is None:
            for n in (*layout_numbers(a), *layout_numbers(b)):
                int(n)  # adds a guard on the value
            return
        distance = offset


def _guard(condition: Any) -> None:
    """Adds a symbolic condition, which holds in the example, as a guard: evaluating it as a bool
    does so.
    """
    assert bool(condition)


def _steps(t: torch.Tensor) -> _Steps:
    steps = [(n, s * t.element_size()) for n, s in zip(t.shape, t.stride())]
    return [(n, s) for n, s in (*steps, (t.element_size(), 1)) if size_hint(s)]


def _length(steps: _Steps) -> Any:
    """The distance from the first byte to the last."""
    return sum(((n - 1) * s for n, s in steps), 0)


def _guard_in_order(length: Any, distance: Any, other: Any) -> bool:
    """Whether one tensor ends before the other begins; if so, adds a guard."""
    if size_hint(length) < size_hint(distance):
        _guard(length < distance)
    elif size_hint(distance + other) < 0:
        _guard(distance + other < 0)
    else:
        return False
    return True


def _without(stride: Any, steps: _Steps) -> _Steps:
    for _, s in steps:
        if size_hint(s) == size_hint(stride):
            _guard(s == stride)
    return [(n, s) for n, s in steps if size_hint(s) != size_hint(stride)]


def _offset_in_row(length: Any, distance: Any, other: Any, stride: Any) -> Any:
    """The other tensor's offset within a row of this one; None if either extends beyond its row.

    If neither does, they can only overlap within one row, so it is enough to compare offsets in it.
    """
    if not size_hint(stride):
        return None
    rows = size_hint(distance) // size_hint(stride)
    for offset in (distance - rows * stride, distance - (rows + 1) * stride):
        farthest = max(size_hint(length - offset), size_hint(offset + other))
        if farthest < size_hint(stride):
            _guard(length - offset < stride)
            _guard(offset + other < stride)
            return offset
    return None
