"""Slices, selections and splits, and the adjoints that scatter into them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from primops import prims
from primops.derivatives import gradient_of
from primops.meta import Size
from primops.operand import (
    Tensor,
    broadcast_to,
    iota,
    pad_dim,
    slice_dim,
    to_dtype,
    unsqueeze,
    zeros,
)
from primops.registry import DecompositionTable
from primops.shapes import (
    concrete,
    is_negative,
    is_zero,
    known,
    larger,
    resized,
    size_hint,
    smaller,
    wrap_dim,
)

rules = DecompositionTable()
Bound = Size | None
END = 2**63 - 1
"""The end of a slice without one."""


def slice_range(size: Size, start: Bound, end: Bound) -> tuple[Size, Size]:
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
    self: Tensor, dim: int = 0, start: Bound = None, end: Bound = None, step: Size = 1
) -> Tensor:
    """A range of one dim."""
    dim = wrap_dim(dim, self.ndim)
    low, high = slice_range(self.shape[dim], start, end)
    return slice_dim(self, dim, low, high, concrete(step))


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
    if _may_be_negative(position):
        return position - size * larger(smaller(position, 0), -1)
    return position


@rules.register("select.int", "select_copy.int")
def select(self: Tensor, dim: int, index: Size) -> Tensor:
    """One position of a dim, which goes away."""
    dim = wrap_dim(dim, self.ndim)
    index = _from_start(index, self.shape[dim])
    one = slice_dim(self, dim, index, index + 1)
    return prims.reshape(one, shape=resized(self.shape, dim))


@rules.register("split.Tensor", "unsafe_split.Tensor", "split_copy.Tensor")
def split(self: Tensor, split_size: Size, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of ``split_size``; the last may be smaller."""
    dim = wrap_dim(dim, self.ndim)
    size = self.shape[dim]
    if is_zero(size):
        return (self,)
    count = concrete((size + split_size - 1) // split_size)
    bounds = [*(i * split_size for i in range(count)), size]
    return tuple(slice_dim(self, dim, *pair) for pair in itertools.pairwise(bounds))


@rules.register(
    "split_with_sizes", "unsafe_split_with_sizes", "split_with_sizes_copy", "split.sizes"
)
def split_with_sizes(self: Tensor, split_sizes: Sequence[Size], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of these sizes."""
    dim = wrap_dim(dim, self.ndim)
    bounds = itertools.accumulate(split_sizes, initial=0)
    return tuple(slice_dim(self, dim, *pair) for pair in itertools.pairwise(bounds))


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
        pieces = slice_dim(base, dim, 0, start), part, slice_dim(base, dim, stop, size)
        filled = [piece for piece in pieces if not is_zero(piece.shape[dim])]
        return prims.cat(*filled or [base], dim=dim)
    position = iota(part.shape[dim], torch.int64, base.device, start, step)
    order = (dim, *(d for d in range(base.ndim) if d != dim))
    base, part = prims.permute(base, dims=order), prims.permute(part, dims=order)
    moved = prims.index_put(base, part, position, dims=(0,), accumulate=False)
    return prims.permute(moved, dims=tuple(map(order.index, range(base.ndim))))


@rules.register("slice_scatter")
def slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: Bound = None, end: Bound = None, step: Size = 1
) -> Tensor:
    """``self`` with a slice replaced by ``src``."""
    dim = wrap_dim(dim, self.ndim)
    low, high = slice_range(self.shape[dim], start, end)
    step = concrete(step)
    length = high - low if step == 1 else (high - low + step - 1) // step
    shape = resized(self.shape, dim, length)
    return place(broadcast_to(to_dtype(src, self.dtype), shape), self, dim, low, high, step)


@rules.register("select_scatter")
def select_scatter(self: Tensor, src: Tensor, dim: int, index: Size) -> Tensor:
    """``self`` with one position of a dim replaced by ``src``."""
    dim = wrap_dim(dim, self.ndim)
    index = _from_start(index, self.shape[dim])
    src = unsqueeze(broadcast_to(to_dtype(src, self.dtype), resized(self.shape, dim)), dim)
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
        return place(grad_output, zeros(input_sizes, grad_output), dim, low, high, step)
    taken = {"dim": dim, "start": low, "stop": high, "step": 1}
    return gradient_of(prims.slice, 0, grad_output, None, zeros(input_sizes, grad_output), **taken)


@rules.register("select_backward")
def select_backward(
    grad_output: Tensor, input_sizes: Sequence[Size], dim: int, index: Size
) -> Tensor:
    """The gradient in a tensor of zeros."""
    dim = wrap_dim(dim, len(input_sizes))
    index = _from_start(index, input_sizes[dim])
    return pad_dim(unsqueeze(grad_output, dim), dim, index, input_sizes[dim] - index - 1)
