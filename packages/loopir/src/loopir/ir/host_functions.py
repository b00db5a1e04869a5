"""Functions of this package that programs call on the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def above_zero(number: int) -> int:
    """The number, or 0 if it is negative."""
    return max(number, 0)


def below_zero(number: int) -> int:
    """The amount by which the number is below 0, or 0."""
    return max(-number, 0)


def restride(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A copy with the given strides; dims with stride 0 are expanded views of one element."""
    own = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)]
    result = torch.empty_strided(own.shape, tuple(stride), dtype=tensor.dtype, device=tensor.device)
    return result.copy_(own).expand(tuple(size))
