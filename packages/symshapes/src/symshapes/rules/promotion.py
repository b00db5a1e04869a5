"""Type promotion of tensors, 0-dim tensors and Python numbers, in that order of strength."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def _kind(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype is torch.bool else 1


def number_dtype(value: Any) -> torch.dtype:
    """The dtype that a Python or symbolic number has in promotion."""
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(value, (int, torch.SymInt)):
        return torch.int64
    if isinstance(value, complex):
        if torch.get_default_dtype() is not torch.float64:
            return torch.complex64
        return torch.complex128
    return torch.get_default_dtype()


def _combine(strong: torch.dtype | None, weak: torch.dtype | None) -> torch.dtype | None:
    """A weaker operand changes the dtype only when it is of a higher kind."""
    if strong is None or weak is None:
        return strong or weak
    if _kind(weak) <= _kind(strong):
        return strong
    if _kind(strong) == 2 and _kind(weak) == 3:
        return torch.promote_types(strong, torch.complex32)
    return torch.promote_types(strong, weak)


def result_dtype(operands: Iterable[Any]) -> torch.dtype:
    """The dtype that tensors and numbers promote to."""
    classes: list[torch.dtype | None] = [None, None, None]
    for x in operands:
        if isinstance(x, torch.Tensor):
            rank, dtype = (0 if x.dim() else 1), x.dtype
        else:
            rank, dtype = 2, number_dtype(x)
        old = classes[rank]
        classes[rank] = dtype if old is None else torch.promote_types(old, dtype)
    dtype = _combine(_combine(classes[0], classes[1]), classes[2])
    assert dtype is not None, "no operands"
    return dtype
