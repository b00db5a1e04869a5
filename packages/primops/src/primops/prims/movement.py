"""Shape prims: they move data and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from primops.errors import PrimError
from primops.meta import Size, TensorMeta, contiguous
from primops.prim import group
from primops.promotion import Number
from primops.shapes import is_one, may_be_equal, may_be_same, product, resized


def check_sorted_dims(dims: Sequence[int], rank: int) -> None:
    """Raises PrimError unless ``dims`` are sorted, distinct, non-negative dims."""
    if list(dims) != sorted(set(dims)) or not all(0 <= dim < rank for dim in dims):
        raise PrimError(f"dims {tuple(dims)} are not sorted dims of rank {rank}")


def _broadcast_rule(a: TensorMeta, *, shape: Sequence[Size], dims: Sequence[int]) -> TensorMeta:
    check_sorted_dims(dims, len(shape))
    if len(dims) != len(a.shape):
        raise PrimError(f"{len(dims)} dims for rank {a.ndim}")
    for size, dim in zip(a.shape, dims):
        if not (is_one(size) or may_be_equal(size, shape[dim])):
            raise PrimError(f"{a.shape} does not fit {tuple(shape)} at {tuple(dims)}")
    return contiguous(shape, a.dtype, a.device)


def _broadcast(a: torch.Tensor, *, shape: Sequence[int], dims: Sequence[int]) -> torch.Tensor:
    sizes = [1] * len(shape)
    for size, dim in zip(a.shape, dims):
        sizes[dim] = size
    return a.reshape(sizes).expand(list(shape)).contiguous()


def _reshape_rule(a: TensorMeta, *, shape: Sequence[Size]) -> TensorMeta:
    if not may_be_equal(product(shape), a.numel()):
        raise PrimError(f"{a.shape} and {tuple(shape)} differ in their number of elements")
    return contiguous(shape, a.dtype, a.device)


def _permute_rule(a: TensorMeta, *, dims: Sequence[int]) -> TensorMeta:
    if sorted(dims) != list(range(a.ndim)):
        raise PrimError(f"dims {tuple(dims)} do not permute rank {a.ndim}")
    return contiguous([a.shape[dim] for dim in dims], a.dtype, a.device)


def _slice_rule(a: TensorMeta, *, dim: int, start: Size, stop: Size, step: int) -> TensorMeta:
    if not 0 <= dim < a.ndim or step < 1:
        raise PrimError(f"dim {dim} of rank {a.ndim}, step {step}")
    size = a.shape[dim]
    if (
        isinstance(start, int)
        and isinstance(stop, int)
        and (not 0 <= start <= stop or (isinstance(size, int) and stop > size))
    ):
        raise PrimError(f"[{start}, {stop}) is not inside size {size}")
    length = stop - start if step == 1 else (stop - start + (step - 1)) // step
    return contiguous(resized(a.shape, dim, length), a.dtype, a.device)


def _slice(a: torch.Tensor, *, dim: int, start: int, stop: int, step: int) -> torch.Tensor:
    return a[(slice(None),) * dim + (slice(start, stop, step),)].contiguous()


def _flip_rule(a: TensorMeta, *, dims: Sequence[int]) -> TensorMeta:
    check_sorted_dims(dims, a.ndim)
    return contiguous(a.shape, a.dtype, a.device)


def _pad_rule(
    a: TensorMeta, *, low: Sequence[Size], high: Sequence[Size], value: Number
) -> TensorMeta:
    if len(low) != a.ndim or len(high) != a.ndim:
        raise PrimError(f"{len(low)} and {len(high)} pads for rank {a.ndim}")
    shape = [size + before + after for size, before, after in zip(a.shape, low, high)]
    if any(isinstance(size, int) and size < 0 for size in shape):
        raise PrimError(f"pads {tuple(low)}, {tuple(high)} leave {tuple(shape)}")
    return contiguous(shape, a.dtype, a.device)


def _pad(a: torch.Tensor, *, low: Sequence[int], high: Sequence[int], value: float) -> torch.Tensor:
    shape = [size + before + after for size, before, after in zip(a.shape, low, high)]
    result = torch.full(shape, value, dtype=a.dtype, device=a.device)
    source = tuple(
        slice(max(0, -before), max(0, size - max(0, -after)))
        for size, before, after in zip(a.shape, low, high)
    )
    target = tuple(
        slice(max(0, before), max(0, size - max(0, after)))
        for size, before, after in zip(shape, low, high)
    )
    result[target] = a[source]
    return result


def _window_rule(a: TensorMeta, *, dim: int, size: int, step: int) -> TensorMeta:
    if (
        not 0 <= dim < a.ndim
        or step < 1
        or size < 0
        or (isinstance(a.shape[dim], int) and a.shape[dim] < size)
    ):
        raise PrimError(f"windows of {size}, {step} apart, along dim {dim} of {a.shape}")
    rest: Any = a.shape[dim] - size
    shape = (*resized(a.shape, dim, rest // step + 1), size)
    return contiguous(shape, a.dtype, a.device)


def _cat_rule(*tensors: TensorMeta, dim: int) -> TensorMeta:
    first = tensors[0]
    length: Size = 0
    for tensor in tensors:
        form = tensor.dtype, tensor.ndim
        if form != (first.dtype, first.ndim) or not 0 <= dim < first.ndim:
            raise PrimError(f"operands {[(t.dtype, t.shape) for t in tensors]} along dim {dim}")
        if not may_be_same(resized(tensor.shape, dim), resized(first.shape, dim)):
            raise PrimError(f"shapes {[t.shape for t in tensors]} differ outside dim {dim}")
        length = tensor.shape[dim] + length
    return contiguous(resized(first.shape, dim, length), first.dtype, first.device)


_movement = group("shape", "movement", dtype_rule="that of a")
broadcast_in_dim = _movement(
    "broadcast_in_dim(a, *, shape, dims)", _broadcast_rule, _broadcast,
    "dim i of a becomes dim dims[i] of shape; a dim of size 1 and the dims not listed repeat",
)  # fmt: skip
reshape = _movement(
    "reshape(a, *, shape)", _reshape_rule, lambda a, *, shape: a.reshape(shape).contiguous(),
    "the elements of a in row-major order, as shape",
)  # fmt: skip
permute = _movement(
    "permute(a, *, dims)", _permute_rule, lambda a, *, dims: a.permute(dims).contiguous(),
    "dim i of the result is dim dims[i] of a",
)  # fmt: skip
slice_ = _movement(
    "slice(a, *, dim, start, stop, step)", _slice_rule, _slice,
    "elements start, start + step, ... below stop along dim; 0 <= start <= stop <= size, step >= 1",
)  # fmt: skip
flip = _movement(
    "flip(a, *, dims)", _flip_rule, lambda a, *, dims: a.flip(dims),
    "reversed order along dims",
)  # fmt: skip
pad = _movement(
    "pad(a, *, low, high, value)", _pad_rule, _pad,
    "low[i] elements of value before dim i and high[i] after it; negative ones remove elements",
)  # fmt: skip
cat = _movement(
    "cat(*tensors, dim)", _cat_rule, lambda *tensors, dim: torch.cat(tensors, dim),
    "tensors one after the other along dim",
)  # fmt: skip
window = _movement(
    "window(a, *, dim, size, step)", _window_rule,
    lambda a, *, dim, size, step: a.unfold(dim, size, step).contiguous(),
    "dim counts windows, the new last dim their elements: result[..., i, ..., k] = a[..., i * step "
    "+ k, ...]",
)  # fmt: skip
