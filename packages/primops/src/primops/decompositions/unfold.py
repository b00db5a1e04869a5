"""Sliding windows as columns (``im2col``, ``unfold``) and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from primops import prims
from primops.decompositions.pooling import LARGEST_WINDOW, Sizes, Window, spread_ints, windows_of
from primops.meta import Size
from primops.operand import (
    Tensor,
    broadcast_to,
    full,
    iota,
    round_to,
    unsqueeze,
    widen,
)
from primops.registry import DecompositionTable
from primops.shapes import quotient

rules = DecompositionTable()


@rules.register("im2col")
def im2col(
    self: Tensor, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Tensor:
    """Windows as columns: dims (batch, channels * window, windows)."""
    windows = windows_of(self, 2, kernel_size, stride, padding, dilation)
    if windows is None:
        return NotImplemented
    rows, columns = windows
    first = self.ndim - 2
    down = _stacked(rows.taps(self, first, 0), first)  # (batch, C, kh, oh, W)
    across = _stacked(columns.taps(down, first + 2, 0), first + 1)  # (batch, C, kh, kw, oh, ow)
    batch = tuple(self.shape[: first - 1])
    inner = self.shape[first - 1] * rows.size * columns.size
    return prims.reshape(across, shape=(*batch, inner, rows.count * columns.count))


def _stacked(parts: Sequence[Tensor], dim: int) -> Tensor:
    return prims.cat(*[unsqueeze(part, dim) for part in parts], dim=dim)


def _parts(a: Tensor, dim: int, count: int) -> list[Tensor]:
    shape = (*a.shape[:dim], *a.shape[dim + 1 :])
    return [
        prims.reshape(prims.slice(a, dim=dim, start=k, stop=k + 1, step=1), shape=shape)
        for k in range(count)
    ]


@rules.register("col2im")
def col2im(
    self: Tensor,
    output_size: Sequence[Size],
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> Tensor:
    """The adjoint of ``im2col``: columns added up where they come from."""
    batch = tuple(self.shape[:-2])
    if max(*kernel_size) > LARGEST_WINDOW:
        return NotImplemented
    given = (spread_ints(x, 2) for x in (kernel_size, stride, padding, dilation))
    kernel, strides, pads, gaps = given
    rows, columns = (Window(*each, False) for each in zip(output_size, kernel, strides, pads, gaps))
    first = len(batch)
    channels = quotient(self.shape[-2], rows.size * columns.size)
    split = prims.reshape(
        widen(self), shape=(*batch, channels, rows.size, columns.size, rows.count, columns.count)
    )
    # (batch, C, kh, oh, W)
    across = columns.put_back(_parts(split, first + 2, columns.size), first + 3)
    return round_to(rows.put_back(_parts(across, first + 1, rows.size), first + 1), self.dtype)


@rules.register("unfold", "unfold_copy")
def unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of a dim; their elements become the last dim."""
    if self.ndim == 0:
        return prims.slice(prims.reshape(self, shape=(1,)), dim=0, start=0, stop=size, step=1)
    return prims.window(self, dim=dimension % self.ndim, size=size, step=step)


@rules.register("unfold_backward")
def unfold_backward(
    grad_in: Tensor, input_sizes: Sequence[Size], dim: int, size: int, step: int
) -> Tensor:
    """The adjoint of ``unfold``."""
    if not input_sizes:
        return round_to(prims.sum(widen(grad_in), dims=(0,)), grad_in.dtype)
    dim %= len(input_sizes)
    window = Window(input_sizes[dim], size, step, 0, 1, False)
    wide = broadcast_to(
        widen(grad_in), (*input_sizes[:dim], window.count, *input_sizes[dim + 1 :], size)
    )
    if size > LARGEST_WINDOW:
        taps = prims.broadcast_in_dim(
            iota(size, torch.int64, wide.device), shape=(window.count, size), dims=(1,)
        )
        starts = prims.broadcast_in_dim(
            iota(window.count, torch.int64, wide.device, 0, step),
            shape=(window.count, size),
            dims=(0,),
        )
        order = (dim, wide.ndim - 1, *(d for d in range(wide.ndim - 1) if d != dim))
        zeros = full(
            (input_sizes[dim], *(n for d, n in enumerate(input_sizes) if d != dim)),
            0,
            wide.dtype,
            wide.device,
        )
        moved = prims.index_put(
            zeros,
            prims.permute(wide, dims=order),
            prims.add(starts, taps),
            dims=(0,),
            accumulate=True,
        )
        back = tuple(0 if d == dim else d + 1 if d < dim else d for d in range(len(input_sizes)))
        return round_to(prims.permute(moved, dims=back), grad_in.dtype)
    if size == 0:
        return full(input_sizes, 0, grad_in.dtype, grad_in.device)
    return round_to(window.put_back(_parts(wide, wide.ndim - 1, size), dim), grad_in.dtype)
