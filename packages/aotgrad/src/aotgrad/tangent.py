"""Incoming gradients, in the layout that the backward graph was compiled for."""

from __future__ import annotations

import torch

from .functional import size_hint


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


def lay_out(tangent: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``tangent`` dense, its dimensions in memory in the order of ``like``, a fake; differentiable."""
    strides, stride = [0] * tangent.dim(), 1
    for d in sorted(reversed(range(tangent.dim())), key=lambda d: size_hint(like.stride(d))):
        strides[d], stride = stride, stride * max(tangent.shape[d], 1)
    return tangent if tangent.stride() == tuple(strides) else restride(tangent, tuple(strides))


class KeptZeros:
    """Zeros in the place of absent gradients. Nobody writes to them, and what depends on them alone is not returned, so they
    are made once for each shape; the few used last are kept."""

    KEPT = 4

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], torch.Tensor] = {}

    def __call__(self, sizes: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor of zeros that must not be written to."""
        key = (sizes, dtype, device)
        made = self._made.pop(key, None)
        if made is None:
            made = torch.zeros(sizes, dtype=dtype, device=device)
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return made  # zeros only once the captured graph runs
        self._made[key] = made
        if len(self._made) > self.KEPT:
            del self._made[next(iter(self._made))]
        return made
