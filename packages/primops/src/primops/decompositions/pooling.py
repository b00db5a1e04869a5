"""Average pooling: windows are taken dim by dim as slices ("taps"), which fuse."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from primops import prims
from primops.meta import Size
from primops.operand import (
    Tensor,
    add_at,
    along,
    full_like,
    iota,
    pad_dim,
    round_to,
    slice_dim,
    spread,
    to_dtype,
    unsqueeze,
    widen,
    zeros,
)
from primops.promotion import is_integral
from primops.registry import DecompositionTable
from primops.shapes import divides, is_zero, numbers, product, quotient, resized

rules = DecompositionTable()
Sizes = Sequence[int]
LARGEST_WINDOW = 64
"""The most elements along one dim that are unrolled."""


def spread_ints(values: Sequence[Any] | Any, count: int) -> tuple[Any, ...]:
    """One value per dim; a single one counts for all."""
    values = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    return values * count if len(values) == 1 else values


# Windows
# --------------------------------------------------------------------------------------------------


def dilate(a: Tensor, dim: int, step: int) -> Tensor:
    """``step - 1`` zeros between the elements of a dim."""
    count = a.shape[dim]
    if step == 1 or is_zero(count):
        return a
    spaced = pad_dim(unsqueeze(a, dim + 1), dim + 1, 0, step - 1)
    merged = prims.reshape(spaced, shape=resized(a.shape, dim, count * step))
    return slice_dim(merged, dim, 0, (count - 1) * step + 1)


def put_strided(a: Tensor, dim: int, start: Size, step: int, size: Size) -> Tensor:
    """The adjoint of a slice: elements at ``start, start + step, ...`` of a dim of zeros; those
    outside are dropped.
    """
    spaced = dilate(a, dim, step)
    return pad_dim(spaced, dim, start, size - start - spaced.shape[dim])


def total(parts: Iterable[Tensor]) -> Tensor:
    """Sum of tensors of one shape."""
    return functools.reduce(prims.add, parts)


class Window:
    """Windows along one dim: ``count`` windows of ``size`` taps, ``dilation`` apart, moving by
    ``stride`` over a padded dim.
    """

    def __init__(
        self, length: Size, size: int, stride: int, padding: int, dilation: int, ceil_mode: bool
    ) -> None:
        self.length, self.size, self.stride = length, size, stride
        self.padding, self.dilation, self.ceil_mode = padding, dilation, ceil_mode
        reach = dilation * (size - 1) + 1
        whole: Any = length + 2 * padding - reach + (stride - 1 if ceil_mode else 0)
        self.count: Any = whole // stride + 1
        # The last window starts inside the input or its left padding.
        if ceil_mode and (self.count - 1) * stride >= length + padding:
            self.count = self.count - 1
        self.span: Any = (self.count - 1) * stride + reach

    def taps(self, a: Tensor, dim: int, fill: Any) -> list[Tensor]:
        """Tap k of every window, for each k."""
        a = pad_dim(a, dim, self.padding, self.span - self.length - self.padding, fill)
        stop = (self.count - 1) * self.stride + 1
        starts = [k * self.dilation for k in range(self.size)]
        return [slice_dim(a, dim, start, start + stop, self.stride) for start in starts]

    def put_back(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        """The adjoint of ``taps``."""
        offsets = [k * self.dilation - self.padding for k in range(self.size)]
        pairs = zip(parts, offsets)
        return total([put_strided(x, dim, at, self.stride, self.length) for x, at in pairs])

    def shared_back(self, a: Tensor, dim: int) -> Tensor:
        """``put_back`` of the same tensor for every tap (dilation 1): each element repeated, then
        shifted by whole strides.
        """
        parts = []
        for start in range(0, self.size, self.stride):
            width = min(self.stride, self.size - start)
            repeated = spread(a, resized(a.shape, dim, a.shape[dim], width), (dim + 1,))
            padded = pad_dim(repeated, dim + 1, 0, self.stride - width)
            length = self.count * self.stride
            merged = prims.reshape(padded, shape=resized(a.shape, dim, length))
            low = start - self.padding
            parts.append(pad_dim(merged, dim, low, self.length - low - length))
        return total(parts)

    def positions(self, k: int, device: torch.device) -> Tensor:
        """Where tap k of every window lies in the input; outside for padding."""
        return iota(self.count, torch.int64, device, k * self.dilation - self.padding, self.stride)

    def sizes(
        self, dtype: torch.dtype, device: torch.device, include_padding: bool
    ) -> Tensor | int:
        """Number of elements that count, per window."""
        if not self.ceil_mode and (include_padding or self.padding == 0):
            return self.size
        low = iota(self.count, torch.int64, device, -self.padding, self.stride)
        high = prims.minimum(prims.add(low, self.size), self.length + self.padding)
        if not include_padding:
            low, high = prims.maximum(low, 0), prims.minimum(high, self.length)
        return to_dtype(prims.sub(high, low), dtype)


def windows_of(
    lengths: Sequence[Size], kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes = (1,),
    ceil_mode: bool = False,
) -> list[Window] | None:  # fmt: skip
    """One ``Window`` per spatial dim. None when a window is too large to unroll, or when the number
    of windows would need a branch on a symbolic length.
    """
    options = (kernel, stride or kernel, padding, dilation)
    sizes, strides, pads, gaps = (spread_ints(x, len(lengths)) for x in options)
    is_symbolic = any(isinstance(length, torch.SymInt) for length in lengths)
    if max(sizes) > LARGEST_WINDOW or (ceil_mode and is_symbolic):
        return None
    return [Window(*each, ceil_mode) for each in zip(lengths, sizes, strides, pads, gaps)]


# Averages
# --------------------------------------------------------------------------------------------------


def _tiled(
    shape: Sequence[Size], counts: Sequence[Size]
) -> tuple[tuple[Size, ...], tuple[int, ...]]:
    """The last dims split into (count, window) pairs, and where the window dims are."""
    first = len(shape) - len(counts)
    split = list(shape[:first])
    for size, count in zip(shape[first:], counts):
        split += [count, quotient(size, count)]
    return tuple(split), tuple(range(first + 1, len(split), 2))


def _average_tiles(self: Tensor, counts: Sequence[Size], divisor: Size | None = None) -> Tensor:
    split, dims = _tiled(self.shape, counts)
    summed = prims.sum(prims.reshape(widen(self), shape=split), dims=dims)
    size = product(split[d] for d in dims) if divisor is None else divisor
    return round_to(prims.div(summed, size), self.dtype)


def _spread_tiles(
    grad: Tensor, shape: Sequence[Size], counts: Sequence[Size], divisor: Size | None = None
) -> Tensor:
    split, dims = _tiled(shape, counts)
    share = prims.div(widen(grad), product(split[d] for d in dims) if divisor is None else divisor)
    return round_to(prims.reshape(spread(share, split, dims), shape=tuple(shape)), grad.dtype)


def _tile_counts(windows: Sequence[Window]) -> list[Size] | None:
    """Numbers of windows when they tile the input, else None."""
    for w in windows:
        if w.padding or w.size != w.stride or not divides(w.size, w.length):
            return None
    return [w.count for w in windows]


def _divided(
    a: Tensor, windows: Sequence[Window], include_padding: bool, divisor: int | None
) -> Tensor:
    sizes: list[Any] = (
        [divisor] if divisor else [w.sizes(a.dtype, a.device, include_padding) for w in windows]
    )
    if all(isinstance(size, int) for size in sizes):
        return prims.div(a, math.prod(sizes))
    whole: Any = None
    for dim, size in enumerate(sizes, a.ndim - len(windows)):
        part = full_like(a, size) if isinstance(size, int) else along(size, a.shape, dim)
        whole = part if whole is None else prims.mul(whole, part)
    return prims.div(a, whole)


def _average_pool(spatial: int) -> None:
    def forward(
        self: Tensor, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        lengths = self.shape[self.ndim - spatial :]
        windows = windows_of(lengths, kernel_size, stride, padding, ceil_mode=ceil_mode)
        if windows is None or is_integral(self.dtype):
            return NotImplemented
        if counts := _tile_counts(windows):
            return _average_tiles(self, counts, divisor_override)
        result = widen(self)
        for dim, window in enumerate(windows, self.ndim - spatial):
            result = total(window.taps(result, dim, 0))
        return round_to(_divided(result, windows, count_include_pad, divisor_override), self.dtype)

    def backward(
        grad_output: Tensor, self: Tensor, kernel_size: Sizes, stride: Sizes, padding: Sizes,
        ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
    ) -> Tensor:  # fmt: skip
        lengths = self.shape[self.ndim - spatial :]
        windows = windows_of(lengths, kernel_size, stride, padding, ceil_mode=ceil_mode)
        if windows is None:
            return NotImplemented
        if counts := _tile_counts(windows):
            return _spread_tiles(grad_output, self.shape, counts, divisor_override)
        result = _divided(widen(grad_output), windows, count_include_pad, divisor_override)
        for dim, window in enumerate(windows, self.ndim - spatial):
            result = window.shared_back(result, dim)
        return round_to(result, grad_output.dtype)

    rules.register(f"avg_pool{spatial}d")(forward)
    rules.register(f"avg_pool{spatial}d_backward")(backward)


class Adaptive:
    """Windows ``[floor(i * length / count), ceil((i + 1) * length / count))``; taps beyond the end
    repeat the last one.
    """

    def __init__(self, length: int, count: int, device: torch.device) -> None:
        bounds = [((i * length) // count, -(-((i + 1) * length) // count)) for i in range(count)]
        self.length = length
        self.size = max((high - low for low, high in bounds), default=1)
        i = iota(count, torch.int64, device)
        self.low = prims.floor_div(prims.mul(i, length), count)
        self.high = prims.floor_div(prims.add(prims.mul(prims.add(i, 1), length), count - 1), count)

    @classmethod
    def along(
        cls, lengths: Sequence[Size], counts: Sequence[Size], device: torch.device
    ) -> list[Adaptive] | None:
        """The windows of each dim; None if a size is symbolic, and so the number of taps."""
        known = numbers((*lengths, *counts))
        if known is None:
            return None
        return [cls(*pair, device) for pair in zip(known[: len(lengths)], known[len(lengths) :])]

    def tap(self, k: int) -> Tensor:
        """Position of tap k of every window."""
        return prims.minimum(prims.add(self.low, k), prims.sub(self.high, 1))

    def masked(self, a: Tensor, dim: int, k: int) -> Tensor:
        """``a`` (per window along dim) where tap k is inside its window, else 0."""
        inside = prims.lt(prims.add(self.low, k), self.high)
        return prims.where(along(inside, a.shape, dim), a, 0)

    def share(self, a: Tensor, dim: int) -> Tensor:
        """``a`` over the number of elements of each window."""
        size = to_dtype(prims.sub(self.high, self.low), a.dtype)
        return prims.div(a, along(size, a.shape, dim))


def _adaptive_average(spatial: int) -> None:
    def forward(self: Tensor, output_size: Sequence[Size]) -> Tensor:
        lengths = self.shape[self.ndim - spatial :]
        if is_integral(self.dtype):
            return NotImplemented
        if all(map(divides, output_size, lengths)):
            return _average_tiles(self, output_size)
        windows = Adaptive.along(lengths, output_size, self.device)
        if windows is None:
            return NotImplemented
        result = widen(self)
        for dim, w in enumerate(windows, self.ndim - spatial):
            taps = (prims.index(result, w.tap(k), dims=(dim,)) for k in range(w.size))
            result = w.share(total([w.masked(tap, dim, k) for k, tap in enumerate(taps)]), dim)
        return round_to(result, self.dtype)

    def backward(grad_output: Tensor, self: Tensor) -> Tensor:
        counts = grad_output.shape[self.ndim - spatial :]
        lengths = self.shape[self.ndim - spatial :]
        if all(map(divides, counts, lengths)):
            return _spread_tiles(grad_output, self.shape, counts)
        windows = Adaptive.along(lengths, counts, self.device)
        if windows is None:
            return NotImplemented
        result = widen(grad_output)
        for dim, w in enumerate(windows, self.ndim - spatial):
            share = w.share(result, dim)
            result = zeros(resized(share.shape, dim, w.length), share)
            for k in range(w.size):
                values = w.masked(share, dim, k)
                result = add_at(result, dim, w.tap(k), values)
        return round_to(result, grad_output.dtype)

    rules.register(f"_adaptive_avg_pool{spatial}d")(forward)
    rules.register(f"_adaptive_avg_pool{spatial}d_backward")(backward)


for _spatial in (2, 3):
    _average_pool(_spatial)
    _adaptive_average(_spatial)
