"""Conversions, views as values, joining and splitting, and their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from primops import prims
from primops.meta import Size
from primops.operand import Scalar, Tensor, broadcast_to, full, pad_dim, to_dtype, unsqueeze
from primops.promotion import is_integral, is_number, result_dtype
from primops.registry import DecompositionTable
from primops.shapes import (
    concrete,
    infer_shape,
    is_negative,
    is_one,
    known,
    larger,
    product,
    size_hint,
    smaller,
    wrap_dim,
)

rules = DecompositionTable()

END = 2**63 - 1


# Conversion
# --------------------------------------------------------------------------------------------------


@rules.register("clone")
def clone(self: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor:
    """The value itself; where memory must be distinct the graph's output says so."""
    return self


@rules.register("_to_copy")
def to_copy(
    self: Tensor, *, dtype: torch.dtype | None = None, layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None, non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:  # fmt: skip
    """Conversion of dtype; a move to another device stays an ATen call."""
    if (
        (device is not None and torch.device(device) != self.device)
        or pin_memory
        or layout not in (None, torch.strided)
    ):
        return NotImplemented
    return self if dtype is None else to_dtype(self, dtype)


@rules.register("to.dtype")
def to_dtype_rule(
    self: Tensor,
    dtype: torch.dtype,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Conversion."""
    return to_dtype(self, dtype)


@rules.register("view.dtype")
def view_dtype(self: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits as another dtype, when the width stays."""
    return (
        prims.bitcast(self, dtype=dtype)
        if self.dtype.itemsize == dtype.itemsize
        else NotImplemented
    )


@rules.register("copy")
def copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """``src`` as if copied into ``self``."""
    return (
        broadcast_to(to_dtype(src, self.dtype), self.shape)
        if src.device == self.device
        else NotImplemented
    )


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
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "squeeze_copy",
    "squeeze_copy.dim",
    "squeeze_copy.dims",
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
    return (
        prims.flip(self, dims=tuple(sorted(wrap_dim(dim, self.ndim) for dim in dims)))
        if self.ndim
        else self
    )


@rules.register("roll")
def roll(self: Tensor, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Tensor:
    """Elements moved by ``shifts`` along ``dims``, around the end."""
    if not dims:
        flat = prims.reshape(self, shape=(self.numel(),))
        return prims.reshape(roll(flat, shifts, [0]), shape=self.shape)
    for shift, dim in zip(shifts, dims):
        dim = wrap_dim(dim, self.ndim)
        size = self.shape[dim]
        if isinstance(size, int) and size == 0:
            return self
        cut = (size - shift % size) % size
        tail = prims.slice(self, dim=dim, start=cut, stop=size, step=1)
        self = prims.cat(tail, prims.slice(self, dim=dim, start=0, stop=cut, step=1), dim=dim)
    return self


@rules.register("repeat")
def repeat(self: Tensor, repeats: Sequence[Size]) -> Tensor:
    """The tensor laid side by side."""
    missing = len(repeats) - self.ndim
    shape = (1,) * missing + tuple(self.shape)
    mixed: list[Size] = []
    for count, size in zip(repeats, shape):
        mixed += [count, size]
    spread = prims.broadcast_in_dim(
        self, shape=tuple(mixed), dims=tuple(range(2 * missing + 1, 2 * len(shape), 2))
    )
    return prims.reshape(spread, shape=tuple(count * size for count, size in zip(repeats, shape)))


@rules.register("diagonal", "diagonal_copy")
def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Elements whose positions along dim1 and dim2 differ by ``offset``; they become the last
    dim.
    """
    dim1, dim2 = wrap_dim(dim1, self.ndim), wrap_dim(dim2, self.ndim)
    rows, columns = self.shape[dim1], self.shape[dim2]
    length = larger(
        smaller(rows, columns - offset) if offset >= 0 else smaller(rows + offset, columns), 0
    )
    order = (*(dim for dim in range(self.ndim) if dim not in (dim1, dim2)), dim1, dim2)
    moved = prims.permute(self, dims=order)
    rest = moved.shape[:-2]
    flat = prims.reshape(moved, shape=(*rest, rows * columns))
    start = smaller(offset, rows * columns) if offset > 0 else smaller(-offset, rows) * columns
    steps = concrete(columns) + 1
    if isinstance(length, int) and length == 0:
        return full((*rest, 0), 0, self.dtype, self.device)
    return prims.slice(
        flat,
        dim=len(rest),
        start=start,
        stop=start + larger((length - 1) * steps + 1, 0),
        step=steps,
    )


# Slices
# --------------------------------------------------------------------------------------------------


def slice_range(size: Size, start: Size | None, end: Size | None) -> tuple[Size, Size]:
    """Python's rule for the bounds of a slice."""
    start = 0 if start is None else start
    end = END if end is None else end
    start, end = (
        larger(_from_start(b, size), 0) if _may_be_negative(b) else b for b in (start, end)
    )
    start = start if isinstance(start, int) and start == 0 else smaller(start, size)
    end = size if isinstance(end, int) and end == END else smaller(end, size)
    return start, start + larger(end - start, 0)


@rules.register("slice.Tensor", "slice_copy.Tensor")
def slice_rule(
    self: Tensor, dim: int = 0, start: Size | None = None, end: Size | None = None, step: Size = 1
) -> Tensor:
    """A range of one dim."""
    dim = wrap_dim(dim, self.ndim)
    low, high = slice_range(self.shape[dim], start, end)
    return prims.slice(self, dim=dim, start=low, stop=high, step=concrete(step))


@rules.register("narrow", "narrow_copy")
def narrow(self: Tensor, dim: int, start: Size, length: Size) -> Tensor:
    """``length`` elements from ``start``."""
    return slice_rule(self, dim, start, start + length)


def _may_be_negative(position: Size) -> bool:
    """Unknown positions that depend on data; others have a guard on their sign."""
    return is_negative(position) or (size_hint(position) is None and not known(position >= 0))


def _from_start(position: Size, size: Size) -> Size:
    """A position that counts from the end where it is negative, as one that counts from the
    start.
    """
    if is_negative(position):
        return size + position
    return (
        position - size * larger(smaller(position, 0), -1)
        if _may_be_negative(position)
        else position
    )


def _without(shape: Sequence[Size], dim: int) -> tuple[Size, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


@rules.register("select.int", "select_copy.int")
def select(self: Tensor, dim: int, index: Size) -> Tensor:
    """One position of a dim, which goes away."""
    dim = wrap_dim(dim, self.ndim)
    index = _from_start(index, self.shape[dim])
    one = prims.slice(self, dim=dim, start=index, stop=index + 1, step=1)
    return prims.reshape(one, shape=_without(self.shape, dim))


@rules.register("split.Tensor", "unsafe_split.Tensor", "split_copy.Tensor")
def split(self: Tensor, split_size: Size, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of ``split_size``; the last may be smaller."""
    dim = wrap_dim(dim, self.ndim)
    size = self.shape[dim]
    if isinstance(size, int) and size == 0:
        return (self,)
    count = concrete((size + split_size - 1) // split_size)
    return tuple(
        prims.slice(
            self,
            dim=dim,
            start=i * split_size,
            stop=size if i == count - 1 else (i + 1) * split_size,
            step=1,
        )
        for i in range(count)
    )


@rules.register(
    "split_with_sizes", "unsafe_split_with_sizes", "split_with_sizes_copy", "split.sizes"
)
def split_with_sizes(self: Tensor, split_sizes: Sequence[Size], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of these sizes."""
    dim = wrap_dim(dim, self.ndim)
    pieces: list[Tensor] = []
    start: Size = 0
    for size in split_sizes:
        pieces.append(prims.slice(self, dim=dim, start=start, stop=start + size, step=1))
        start = start + size
    return tuple(pieces)


@rules.register("chunk", "unsafe_chunk")
def chunk(self: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most ``chunks`` equal pieces."""
    dim = wrap_dim(dim, self.ndim)
    return split(self, larger((self.shape[dim] + chunks - 1) // chunks, 1), dim)


@rules.register("unbind.int", "unbind_copy.int")
def unbind(self: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """All positions of a dim."""
    dim = wrap_dim(dim, self.ndim)
    return tuple(select(self, dim, i) for i in range(concrete(self.shape[dim])))


def place(part: Tensor, base: Tensor, dim: int, start: Size, stop: Size, step: int) -> Tensor:
    """``base`` with ``[start, stop)`` of ``dim``, every ``step``, replaced by ``part``."""
    size = base.shape[dim]
    if step == 1:
        before = prims.slice(base, dim=dim, start=0, stop=start, step=1)
        after = prims.slice(base, dim=dim, start=stop, stop=size, step=1)
        pieces = [before, part, after]
        return prims.cat(
            *[p for p in pieces if not (isinstance(p.shape[dim], int) and p.shape[dim] == 0)]
            or [base],
            dim=dim,
        )
    position = prims.iota(
        length=part.shape[dim], start=start, step=step, dtype=torch.int64, device=base.device
    )
    order = (dim, *(d for d in range(base.ndim) if d != dim))
    return _along_first(base, part, position, order)


def _along_first(base: Tensor, part: Tensor, position: Tensor, order: tuple[int, ...]) -> Tensor:
    moved = prims.index_put(
        prims.permute(base, dims=order), prims.permute(part, dims=order), position, dims=(0,),
        accumulate=False
    )  # fmt: skip
    return prims.permute(moved, dims=tuple(order.index(d) for d in range(len(order))))


@rules.register("slice_scatter")
def slice_scatter(
    self: Tensor,
    src: Tensor,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> Tensor:
    """``self`` with a slice replaced by ``src``."""
    dim = wrap_dim(dim, self.ndim)
    low, high = slice_range(self.shape[dim], start, end)
    step = concrete(step)
    shape = [
        *self.shape[:dim],
        high - low if step == 1 else (high - low + step - 1) // step,
        *self.shape[dim + 1 :],
    ]
    return place(broadcast_to(to_dtype(src, self.dtype), shape), self, dim, low, high, step)


@rules.register("select_scatter")
def select_scatter(self: Tensor, src: Tensor, dim: int, index: Size) -> Tensor:
    """``self`` with one position of a dim replaced by ``src``."""
    dim = wrap_dim(dim, self.ndim)
    index = _from_start(index, self.shape[dim])
    src = unsqueeze(broadcast_to(to_dtype(src, self.dtype), _without(self.shape, dim)), dim)
    return place(src, self, dim, index, index + 1, 1)


@rules.register("slice_backward")
def slice_backward(
    grad_output: Tensor, input_sizes: Sequence[Size], dim: int, start: Size, end: Size, step: Size
) -> Tensor:
    """The gradient in a tensor of zeros."""
    dim, step = wrap_dim(dim, len(input_sizes)), concrete(step)
    size = input_sizes[dim]
    low, high = slice_range(size, start, end)
    if step != 1:
        zeros = full(input_sizes, 0, grad_output.dtype, grad_output.device)
        return place(grad_output, zeros, dim, low, high, step)
    return pad_dim(grad_output, dim, low, size - high)


@rules.register("select_backward")
def select_backward(
    grad_output: Tensor, input_sizes: Sequence[Size], dim: int, index: Size
) -> Tensor:
    """The gradient in a tensor of zeros."""
    dim = wrap_dim(dim, len(input_sizes))
    index = _from_start(index, input_sizes[dim])
    return pad_dim(unsqueeze(grad_output, dim), dim, index, input_sizes[dim] - index - 1)


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


@rules.register("pixel_shuffle")
def pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
    """Channels to space."""
    *batch, channels, height, width = self.shape
    r, n = upscale_factor, len(batch)
    split_up = prims.reshape(self, shape=(*batch, channels // (r * r), r, r, height, width))
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return prims.reshape(
        prims.permute(split_up, dims=order),
        shape=(*batch, channels // (r * r), height * r, width * r),
    )


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
    split_up = prims.reshape(self, shape=(*batch, channels, height // r, r, width // r, r))
    moved = prims.permute(split_up, dims=(*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return prims.reshape(moved, shape=(*batch, channels * r * r, height // r, width // r))


@rules.register("channel_shuffle")
def channel_shuffle(self: Tensor, groups: int) -> Tensor:
    """Channels of groups taken in turn."""
    batch, channels, *rest = self.shape
    split_up = prims.reshape(self, shape=(batch, groups, channels // groups, *rest))
    moved = prims.permute(split_up, dims=(0, 2, 1, *range(3, split_up.ndim)))
    return prims.reshape(moved, shape=tuple(self.shape))


@rules.register("rot90")
def rot90(self: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by k quarters in a plane."""
    first, second = (wrap_dim(dim, self.ndim) for dim in dims)
    k %= 4
    if k == 2:
        return flip(self, [first, second])
    if k == 0:
        return self
    return (
        transpose(flip(self, [second]), first, second)
        if k == 1
        else flip(transpose(self, first, second), [second])
    )


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
        rows.append(
            prims.reshape(
                padded,
                shape=(
                    *tensor.shape[:dim],
                    num_chunks,
                    product((size // num_chunks, *tensor.shape[dim + 1 :])),
                ),
            )
        )
    return prims.cat(*rows, dim=rows[0].ndim - 1)


@rules.register("resize")
def resize(self: Tensor, size: Sequence[Size], *, memory_format: Any = None) -> Tensor:
    """The same elements in another shape, or fewer of them."""
    count, wanted = self.numel(), product(size)
    if not isinstance(count, int) or not isinstance(wanted, int) or wanted > count:
        return NotImplemented
    flat = prims.slice(prims.reshape(self, shape=(count,)), dim=0, start=0, stop=wanted, step=1)
    return prims.reshape(flat, shape=tuple(size))


rules.register("resize_as")(
    lambda self, template, **options: resize(self, template.shape, **options)
)
