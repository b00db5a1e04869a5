"""Sliding windows as columns (``im2col``, ``unfold``) and back."""

from __future__ import annotations

from collections.abc import Sequence

from primops import prims
from primops.decompositions.pooling import LARGEST_WINDOW, Sizes, Window, windows_of
from primops.derivatives import gradient_of
from primops.meta import Size
from primops.operand import (
    Tensor,
    broadcast_to,
    flat,
    round_to,
    slice_dim,
    unsqueeze,
    widen,
    zeros,
)
from primops.registry import DecompositionTable
from primops.shapes import quotient, resized

rules = DecompositionTable()


@rules.register("im2col")
def im2col(
    self: Tensor, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Tensor:
    """Windows as columns: dims (batch, channels * window, windows)."""
    first = self.ndim - 2
    windows = windows_of(self.shape[first:], kernel_size, stride, padding, dilation)
    if windows is None:
        return NotImplemented
    rows, columns = windows
    down = _stacked(rows.taps(self, first, 0), first)  # (batch, C, kh, oh, W)
    across = _stacked(columns.taps(down, first + 2, 0), first + 1)  # (batch, C, kh, kw, oh, ow)
    batch = tuple(self.shape[: first - 1])
    inner = self.shape[first - 1] * rows.size * columns.size
    return prims.reshape(across, shape=(*batch, inner, rows.count * columns.count))


def _stacked(parts: Sequence[Tensor], dim: int) -> Tensor:
    return prims.cat(*[unsqueeze(part, dim) for part in parts], dim=dim)


def _parts(a: Tensor, dim: int, count: int) -> list[Tensor]:
    pieces = (slice_dim(a, dim, k, k + 1) for k in range(count))
    return [prims.reshape(piece, shape=resized(a.shape, dim)) for piece in pieces]


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
    windows = windows_of(output_size, kernel_size, stride, padding, dilation)
    if windows is None:
        return NotImplemented
    rows, columns = windows
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
        return slice_dim(flat(self), 0, 0, size)
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
    wide = broadcast_to(widen(grad_in), (*resized(input_sizes, dim, window.count), size))
    if size > LARGEST_WINDOW:
        self, window_of = zeros(input_sizes, wide), {"dim": dim, "size": size, "step": step}
        added = gradient_of(prims.window, 0, wide, None, self, **window_of)
        return round_to(added, grad_in.dtype)
    if size == 0:
        return zeros(input_sizes, grad_in)
    return round_to(window.put_back(_parts(wide, wide.ndim - 1, size), dim), grad_in.dtype)
