"""Donation: backward may overwrite a saved value, or a copy if something else references it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

_storage_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
_tensor_use_count: Callable[[torch.Tensor], int] | None = getattr(torch.Tensor, "_use_count", None)
IS_AVAILABLE = None not in (_storage_use_count, _tensor_use_count) and hasattr(
    torch._C._FunctionBase, "maybe_clear_saved_tensors"
)


def reference_counts(tensor: torch.Tensor) -> tuple[int, int, int]:
    """How many references there are to a tensor from Python, from C++, and to its storage."""
    assert _tensor_use_count is not None and _storage_use_count is not None
    return (
        sys.getrefcount(tensor),
        _tensor_use_count(tensor),
        _storage_use_count(tensor.untyped_storage()._cdata),
    )


def _sole_reference() -> tuple[int, int, int]:
    tensor = torch.empty(1, device="cpu")
    return reference_counts(tensor)


SOLE_REFERENCE = _sole_reference() if IS_AVAILABLE else (0, 0, 0)
"""``reference_counts(t)`` of a tensor that one local variable holds."""


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    return tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor)
