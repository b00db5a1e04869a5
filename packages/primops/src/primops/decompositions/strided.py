"""``as_strided`` and its like: memory as reshapes, windows and permutations of the tensor that
fills it.

A rule covers tensors without gaps, and counts ``storage_offset`` from their first element: the pass
calls it with the tensor that owns the memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from primops import prims
from primops.meta import Size, contiguous_strides
from primops.operand import Tensor, broadcast_to, flat, iota, slice_dim, to_dtype, zeros
from primops.registry import DecompositionTable
from primops.shapes import is_empty, is_one, product, same_shape, same_size, size_hint

rules = DecompositionTable()
Sizes = Sequence[Size]


def _descending(shape: Sizes, strides: Sizes) -> list[int] | None:
    """The dims from the largest stride to the smallest, those of size 1 first; None when a stride
    is unknown.
    """
    hints = [size_hint(step) for step in strides]
    if None in hints:
        return None
    return sorted(range(len(shape)), key=lambda dim: (not is_one(shape[dim]), -(hints[dim] or 0)))


def _memory_order(shape: Sizes, strides: Sizes) -> list[int] | None:
    """The dims from the outermost in memory to the innermost; None where there are gaps, overlaps
    or unknown strides.
    """
    order = _descending(shape, strides)
    if order is None:
        return None
    many = [dim for dim in order if not is_one(shape[dim])]
    steps, dense = [strides[dim] for dim in many], contiguous_strides([shape[dim] for dim in many])
    return order if same_shape(steps, dense) else None


def _flat(a: Tensor, order: Sequence[int]) -> Tensor:
    return flat(prims.permute(a, dims=tuple(order)))


def _shaped(flat: Tensor, shape: Sizes, order: Sequence[int]) -> Tensor:
    """The inverse of ``_flat``."""
    moved = prims.reshape(flat, shape=tuple(shape[dim] for dim in order))
    return prims.permute(moved, dims=tuple(order.index(dim) for dim in range(len(order))))


def _strided(vector: Tensor, size: Sizes, stride: Sizes, offset: Size) -> Tensor:
    """``vector[offset + sum(i * stride)]``; NotImplemented where that leaves the vector, or may for
    some value of a symbol.
    """
    if is_empty(size):
        return zeros(size, vector)
    once = [1 if isinstance(step, int) and step == 0 else n for n, step in zip(size, stride)]
    order = _memory_order(once, stride)
    if order is not None and same_size(offset, 0) and same_size(product(once), vector.numel()):
        return broadcast_to(_shaped(vector, once, order), size)
    if not all(isinstance(n, int) for n in (*once, *stride, offset, vector.numel())):
        return NotImplemented
    order = _descending(once, stride) or []
    extent = 1 + sum((n - 1) * step for n, step in zip(once, stride))
    if not 0 <= offset <= vector.numel() - extent:
        return NotImplemented
    vector = slice_dim(vector, 0, offset, offset + extent)
    for position, dim in enumerate(order):
        extent -= (once[dim] - 1) * stride[dim]
        vector = prims.window(vector, dim=position, size=extent, step=max(stride[dim], 1))
    return broadcast_to(_shaped(vector, once, order), size)


def _overlaps(size: Sizes, stride: Sizes) -> bool:
    """Whether two positions may be the same memory."""
    reach: Size = 0
    for dim in reversed(_descending(size, stride) or []):
        if not is_one(size[dim]):
            if stride[dim] <= reach:
                return True
            reach += (size[dim] - 1) * stride[dim]
    return False


@rules.register("as_strided", "as_strided_copy")
def as_strided(self: Tensor, size: Sizes, stride: Sizes, storage_offset: Size = 0) -> Tensor:
    """Elements of memory at ``storage_offset + sum(i * stride)``."""
    order = _memory_order(self.shape, self.stride())
    if order is None:
        return NotImplemented
    return _strided(_flat(self, order), size, stride, storage_offset)


@rules.register("as_strided_scatter")
def as_strided_scatter(
    self: Tensor, src: Tensor, size: Sizes, stride: Sizes, storage_offset: Size = 0
) -> Tensor:
    """``self`` with the elements that ``as_strided`` reads replaced."""
    order, given = _memory_order(self.shape, self.stride()), _memory_order(size, stride)
    if not same_shape(src.shape, size) or order is None:
        return NotImplemented
    if is_empty(size):
        return self
    count, src = self.numel(), to_dtype(src, self.dtype)
    if given is not None and same_size(storage_offset, 0) and same_size(product(size), count):
        return _shaped(_flat(src, given), self.shape, order)
    where = _strided(iota(count, torch.int64, self.device), size, stride, storage_offset)
    if where is NotImplemented or _overlaps(size, stride):  # eager refuses what overlaps
        return NotImplemented
    put = prims.index_put(_flat(self, order), flat(src), flat(where), dims=(0,), accumulate=False)
    return _shaped(put, self.shape, order)
