"""``TensorMeta``: what is known of a tensor before it exists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

Size = int | torch.SymInt


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape, strides (in elements), dtype and device of a tensor. Sizes and strides are ``int`` or
    ``torch.SymInt``.

    Strides of a prim's result are those of a contiguous tensor. They bind the producer only where
    clause C3.6 says so.
    """

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def ndim(self) -> int:
        """Rank; always static."""
        return len(self.shape)

    def stride(self) -> tuple[Size, ...]:
        """Strides in elements, as ``torch.Tensor.stride`` gives them."""
        return self.strides

    def numel(self) -> Size:
        """Number of elements."""
        return math.prod(self.shape)

    @staticmethod
    def from_tensor(tensor: torch.Tensor | TensorMeta) -> TensorMeta:
        """The metadata of a real, meta or fake tensor (duck-typed:
        ``shape stride() dtype device``).
        """
        if isinstance(tensor, TensorMeta):
            return tensor
        return TensorMeta(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)


def contiguous_strides(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides. A symbolic size counts as at least 1, so no comparison is needed."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (max(size, 1) if isinstance(size, int) else size)
    return tuple(reversed(strides))


def contiguous(shape: Sequence[Size], dtype: torch.dtype, device: torch.device) -> TensorMeta:
    """Metadata of a row-major tensor."""
    shape = tuple(shape)
    try:
        return _contiguous_static(shape, dtype, device)
    except TypeError:  # SymInts are not hashable
        return TensorMeta(shape, contiguous_strides(shape), dtype, device)


@lru_cache(maxsize=8192, typed=True)
def _contiguous_static(
    shape: tuple[Size, ...], dtype: torch.dtype, device: torch.device
) -> TensorMeta:
    return TensorMeta(shape, contiguous_strides(shape), dtype, device)
