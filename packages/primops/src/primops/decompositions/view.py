"""Conversions, views as values, joining and splitting, and their derivatives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from primops import prims
from primops.meta import Size
from primops.operand import (
    Scalar,
    Tensor,
    broadcast_to,
    flat,
    pad_dim,
    slice_dim,
    to_dtype,
    unsqueeze,
    zeros,
)
from primops.promotion import is_integral, is_number, result_dtype
from primops.registry import DecompositionTable
from primops.shapes import (
    infer_shape,
    is_one,
    is_zero,
    larger,
    product,
    smaller,
    wrap_dim,
)

rules = DecompositionTable()


# Conversion
# --------------------------------------------------------------------------------------------------


@rules.register("_to_copy")
def to_copy(
    self: Tensor, *, dtype: torch.dtype | None = None, layout: Any = None,
    device: torch.device | None = None, pin_memory: bool | None = None, non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:  # fmt: skip
    """Conversion of dtype; a move to another device stays an ATen call."""
    moves = device is not None and torch.device(device) != self.device
    if moves or pin_memory or layout not in (None, torch.strided):
        return NotImplemented
    return self if dtype is None else to_dtype(self, dtype)


rules.register("to.dtype")(lambda self, dtype, *_, **options: to_dtype(self, dtype))


@rules.register("view.dtype")
def view_dtype(self: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits as another dtype, when the width stays."""
    if self.dtype.itemsize == dtype.itemsize:
        return prims.bitcast(self, dtype=dtype)
    return NotImplemented


@rules.register("copy")
def copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """``src`` as if copied into ``self``."""
    if src.device == self.device:
        return broadcast_to(to_dtype(src, self.dtype), self.shape)
    return NotImplemented


# Shape
# --------------------------------------------------------------------------------------------------


@rules.register("view", "_unsafe_view", "reshape", "_reshape_copy", "view_copy", "_reshape_alias")
def view(self: Tensor, size: Sequence[Size], stride: Sequence[Size] | None = None) -> Tensor:
    """The same elements in another shape; one size may be -1."""
    return prims.reshape(self, shape=infer_shape(size, self.numel()))


@rules.register("permute", "permute_copy")
def permute(self: Tensor, dims: Sequence[int]) -> Tensor:
    """Dims in another order."""
    return prims.permute(self, dims=tuple(wrap_dim(dim, self.ndim) for dim in dims))


@rules.register("transpose.int", "transpose_copy.int")
def transpose(self: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dims exchanged."""
    if self.ndim == 0:
        return self
    order = list(range(self.ndim))
    dim0, dim1 = wrap_dim(dim0, self.ndim), wrap_dim(dim1, self.ndim)
    order[dim0], order[dim1] = dim1, dim0
    return prims.permute(self, dims=tuple(order))


@rules.register("t", "t_copy", "numpy_T")
def t(self: Tensor) -> Tensor:
    """Dims reversed."""
    return prims.permute(self, dims=tuple(reversed(range(self.ndim))))


@rules.register("expand", "expand_copy")
def expand(self: Tensor, size: Sequence[Size], *, implicit: bool = False) -> Tensor:
    """Dims of size 1 repeated; -1 keeps a size."""
    missing = len(size) - self.ndim
    shape = [
        self.shape[dim - missing] if isinstance(wanted, int) and wanted == -1 else wanted
        for dim, wanted in enumerate(size)
    ]
    return broadcast_to(self, shape)


@rules.register("unsqueeze", "unsqueeze_copy")
def unsqueeze_rule(self: Tensor, dim: int) -> Tensor:
    """A new dim of size 1."""
    return unsqueeze(self, wrap_dim(dim, self.ndim + 1))


@rules.register(
    *(f"{name}{which}" for name in ("squeeze", "squeeze_copy") for which in ("", ".dim", ".dims"))
)
def squeeze(self: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Dims of size 1 removed (all, or those listed)."""
    listed = range(self.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    removed = {wrap_dim(d, self.ndim) for d in listed}
    shape = tuple(size for d, size in enumerate(self.shape) if not (d in removed and is_one(size)))
    return prims.reshape(self, shape=shape)


@rules.register("flip")
def flip(self: Tensor, dims: Sequence[int]) -> Tensor:
    """Reversed along dims."""
    if self.ndim:
        return prims.flip(self, dims=tuple(sorted(wrap_dim(dim, self.ndim) for dim in dims)))
    return self


@rules.register("roll")
def roll(self: Tensor, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Tensor:
    """Elements moved by ``shifts`` along ``dims``, around the end."""
    if not dims:
        return prims.reshape(roll(flat(self), shifts, [0]), shape=self.shape)
    for shift, dim in zip(shifts, dims):
        dim = wrap_dim(dim, self.ndim)
        size = self.shape[dim]
        if is_zero(size):
            return self
        cut = (size - shift % size) % size
        self = prims.cat(slice_dim(self, dim, cut, size), slice_dim(self, dim, 0, cut), dim=dim)
    return self


@rules.register("repeat")
def repeat(self: Tensor, repeats: Sequence[Size]) -> Tensor:
    """The tensor laid side by side."""
    missing = len(repeats) - self.ndim
    shape = (1,) * missing + tuple(self.shape)
    pairs = tuple(itertools.chain.from_iterable(zip(repeats, shape)))
    dims = tuple(range(2 * missing + 1, 2 * len(shape), 2))
    spread = prims.broadcast_in_dim(self, shape=pairs, dims=dims)
    return prims.reshape(spread, shape=tuple(count * size for count, size in zip(repeats, shape)))


@rules.register("diagonal", "diagonal_copy")
def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Elements whose positions along dim1 and dim2 differ by ``offset``; they become the last
    dim.
    """
    dim1, dim2 = wrap_dim(dim1, self.ndim), wrap_dim(dim2, self.ndim)
    rows, columns = self.shape[dim1], self.shape[dim2]
    inside = smaller(rows, columns - offset) if offset >= 0 else smaller(rows + offset, columns)
    length = larger(inside, 0)
    order = (*(dim for dim in range(self.ndim) if dim not in (dim1, dim2)), dim1, dim2)
    moved = prims.permute(self, dims=order)
    rest = moved.shape[:-2]
    if is_zero(length):
        return zeros((*rest, 0), self)
    if not isinstance(columns, int):
        return _diagonal_of_square(moved, max(-offset, 0), max(offset, 0), length)
    rows_joined = prims.reshape(moved, shape=(*rest, rows * columns))
    start = smaller(offset, rows * columns) if offset > 0 else smaller(-offset, rows) * columns
    steps = columns + 1
    stop = start + larger((length - 1) * steps + 1, 0)
    return slice_dim(rows_joined, len(rest), start, stop, steps)


def _diagonal_of_square(self: Tensor, row: Size, column: Size, length: Size) -> Tensor:
    """The diagonal from a row and column on, as a column: behind the square's elements follow
    ``length`` more, and all in rows of ``length + 1`` begin with the diagonal's.
    """
    dims = self.ndim - 2, self.ndim - 1
    square = slice_dim(
        slice_dim(self, dims[0], row, row + length), dims[1], column, column + length
    )
    rest = self.shape[:-2]
    joined = prims.reshape(square, shape=(*rest, length * length))
    longer = pad_dim(joined, dims[0], 0, length)
    rows = prims.reshape(longer, shape=(*rest, length, length + 1))
    return prims.reshape(slice_dim(rows, dims[1], 0, 1), shape=(*rest, length))


# Joining
# --------------------------------------------------------------------------------------------------


@rules.register("cat", "concat")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """One after the other; empty vectors are skipped beside tensors of higher rank."""
    dtype = result_dtype(*tensors)
    rank = max(tensor.ndim for tensor in tensors)
    joined = [to_dtype(tensor, dtype) for tensor in tensors if tensor.ndim == rank]
    return prims.cat(*joined, dim=wrap_dim(dim, rank))


@rules.register("stack", "_stack")
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Side by side along a new dim."""
    dim = wrap_dim(dim, tensors[0].ndim + 1)
    return cat([unsqueeze(tensor, dim) for tensor in tensors], dim)


@rules.register("constant_pad_nd")
def constant_pad_nd(self: Tensor, pad: Sequence[Size], value: Scalar = 0) -> Tensor:
    """Numbers before and after dims, given in pairs from the last dim backwards."""
    low: list[Size] = [0] * self.ndim
    high: list[Size] = [0] * self.ndim
    for pair in range(len(pad) // 2):
        low[self.ndim - 1 - pair], high[self.ndim - 1 - pair] = pad[2 * pair], pad[2 * pair + 1]
    if is_integral(self.dtype) and is_number(value):
        value = bool(value) if self.dtype is torch.bool else int(value)
    return prims.pad(self, low=tuple(low), high=tuple(high), value=value)


def _rearranged(a: Tensor, split: Any, order: Any, shape: Any) -> Tensor:
    """Dims split, put in another order and joined."""
    moved = prims.permute(prims.reshape(a, shape=tuple(split)), dims=tuple(order))
    return prims.reshape(moved, shape=tuple(shape))


@rules.register("pixel_shuffle")
def pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
    """Channels to space."""
    *batch, channels, height, width = self.shape
    r, n = upscale_factor, len(batch)
    split = (*batch, channels // (r * r), r, r, height, width)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return _rearranged(self, split, order, (*batch, split[n], height * r, width * r))


@rules.register("flatten.using_ints")
def flatten(self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dims from ``start_dim`` to ``end_dim`` as one."""
    start, end = wrap_dim(start_dim, self.ndim), wrap_dim(end_dim, self.ndim)
    merged = product(self.shape[start : end + 1])
    return prims.reshape(self, shape=(*self.shape[:start], merged, *self.shape[end + 1 :]))


@rules.register("pixel_unshuffle")
def pixel_unshuffle(self: Tensor, downscale_factor: int) -> Tensor:
    """Space to channels."""
    *batch, channels, height, width = self.shape
    r, n = downscale_factor, len(batch)
    split = (*batch, channels, height // r, r, width // r, r)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return _rearranged(self, split, order, (*batch, channels * r * r, height // r, width // r))


@rules.register("channel_shuffle")
def channel_shuffle(self: Tensor, groups: int) -> Tensor:
    """Channels of groups taken in turn."""
    batch, channels, *rest = self.shape
    split = (batch, groups, channels // groups, *rest)
    return _rearranged(self, split, (0, 2, 1, *range(3, len(split))), self.shape)


@rules.register("rot90")
def rot90(self: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by k quarters in a plane."""
    first, second = (wrap_dim(dim, self.ndim) for dim in dims)
    k %= 4
    if k == 2:
        return flip(self, [first, second])
    if k == 0:
        return self
    if k == 1:
        return transpose(flip(self, [second]), first, second)
    return flip(transpose(self, first, second), [second])


@rules.register("_chunk_cat")
def chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int) -> Tensor:
    """Each tensor's dim padded to a multiple of chunks and cut; chunks of all tensors side by
    side.
    """
    rows = []
    dtype, dim = result_dtype(*tensors), wrap_dim(dim, tensors[0].ndim)
    for tensor in tensors:
        size = -(-tensor.shape[dim] // num_chunks) * num_chunks
        padded = pad_dim(to_dtype(tensor, dtype), dim, 0, size - tensor.shape[dim])
        rest = product((size // num_chunks, *tensor.shape[dim + 1 :]))
        rows.append(prims.reshape(padded, shape=(*tensor.shape[:dim], num_chunks, rest)))
    return prims.cat(*rows, dim=rows[0].ndim - 1)


@rules.register("resize")
def resize(self: Tensor, size: Sequence[Size], *, memory_format: Any = None) -> Tensor:
    """The same elements in another shape, or fewer of them."""
    count, wanted = self.numel(), product(size)
    if not isinstance(count, int) or not isinstance(wanted, int) or wanted > count:
        return NotImplemented
    return prims.reshape(slice_dim(flat(self), 0, 0, wanted), shape=tuple(size))


rules.register("resize_as")(lambda self, like, **options: resize(self, like.shape, **options))
