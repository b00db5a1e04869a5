"""Incoming gradients, in the layout that the backward graph was compiled for."""

from __future__ import annotations

import torch


def restride(tangent: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """``tangent`` with the given dense strides: itself when only dimensions of size 1 differ, else a copy.

    Sparse gradients become dense.
    """
    if tangent.layout is not torch.strided:
        tangent = tangent.to_dense()
    shape = tangent.shape
    if all(size == 1 or a == b for size, a, b in zip(shape, tangent.stride(), strides)):
        return tangent.as_strided(shape, strides)
    return torch.empty_strided(shape, strides, dtype=tangent.dtype, device=tangent.device).copy_(tangent)
