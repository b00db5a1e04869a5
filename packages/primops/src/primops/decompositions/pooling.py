"""Pooling: windows are cut out dim by dim as slices ("taps"), which fuse, and put back by their
adjoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from primops import prims
from primops.decompositions.indexing import scatter_add
from primops.meta import Size
from primops.operand import (
    Tensor,
    broadcast_to,
    full,
    full_like,
    iota,
    pad_dim,
    round_to,
    to_dtype,
    unsqueeze,
    widen,
)
from primops.promotion import is_integral
from primops.registry import DecompositionTable
from primops.shapes import concrete, divides, product, quotient, same_size

rules = DecompositionTable()
Sizes = Sequence[int]
SIDE_BY_SIDE = {"cuda"}
"""Devices whose threads add to neighbours in memory at once; others had better stay in a plane that
the cache holds.
"""
LARGEST_WINDOW = 64  # elements along one dim that are still written out


def spread_ints(values: Sequence[Any] | Any, count: int) -> tuple[Any, ...]:
    """One value per dim; a single one counts for all."""
    values = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    return values * count if len(values) == 1 else values


# Windows
# --------------------------------------------------------------------------------------------------


def dilate(a: Tensor, dim: int, step: int) -> Tensor:
    """``step - 1`` zeros between the elements of a dim."""
    count = a.shape[dim]
    if step == 1 or (isinstance(count, int) and count == 0):
        return a
    spaced = pad_dim(unsqueeze(a, dim + 1), dim + 1, 0, step - 1)
    merged = prims.reshape(spaced, shape=(*a.shape[:dim], count * step, *a.shape[dim + 1 :]))
    return prims.slice(merged, dim=dim, start=0, stop=(count - 1) * step + 1, step=1)


def put_strided(a: Tensor, dim: int, start: Size, step: int, size: Size) -> Tensor:
    """The adjoint of a slice: elements at ``start, start + step, ...`` of a dim of zeros; those
    outside are dropped.
    """
    spaced = dilate(a, dim, step)
    return pad_dim(spaced, dim, start, size - start - spaced.shape[dim])


def total(parts: Iterator[Tensor] | Sequence[Tensor]) -> Tensor:
    """Sum of tensors of one shape."""
    result = None
    for part in parts:
        result = part if result is None else prims.add(result, part)
    return result


class Window:
    """Windows along one dim: ``count`` windows of ``size`` taps, ``dilation`` apart, moving by
    ``stride`` over a padded dim.
    """

    def __init__(
        self, length: Size, size: int, stride: int, padding: int, dilation: int, ceil_mode: bool
    ) -> None:
        self.length, self.size, self.stride, self.padding, self.dilation = (
            length,
            size,
            stride,
            padding,
            dilation,
        )
        self.ceil_mode = ceil_mode
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
        return [
            prims.slice(
                a, dim=dim, start=k * self.dilation, stop=k * self.dilation + stop, step=self.stride
            )
            for k in range(self.size)
        ]

    def put_back(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        """The adjoint of ``taps``."""
        offsets = [k * self.dilation - self.padding for k in range(self.size)]
        return total(
            [
                put_strided(part, dim, at, self.stride, self.length)
                for part, at in zip(parts, offsets)
            ]
        )

    def shared_back(self, a: Tensor, dim: int) -> Tensor:
        """``put_back`` of the same tensor for every tap (dilation 1): each element repeated, then
        shifted by whole strides.
        """
        parts = []
        for start in range(0, self.size, self.stride):
            width = min(self.stride, self.size - start)
            shape = (*a.shape[: dim + 1], width, *a.shape[dim + 1 :])
            repeated = prims.broadcast_in_dim(
                a, shape=shape, dims=tuple(d for d in range(len(shape)) if d != dim + 1)
            )
            padded = pad_dim(repeated, dim + 1, 0, self.stride - width)
            length = self.count * self.stride
            merged = prims.reshape(padded, shape=(*a.shape[:dim], length, *a.shape[dim + 1 :]))
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
    self: Tensor,
    spatial: int,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes = (1,),
    ceil_mode: bool = False,
) -> list[Window] | None:
    """One per spatial dim; None when a window is too large, or its number depends on a symbol in a
    way that needs a branch.
    """
    lengths = self.shape[self.ndim - spatial :]
    kernel = spread_ints(kernel, spatial)
    if max(kernel) > LARGEST_WINDOW or (
        ceil_mode and any(isinstance(n, torch.SymInt) for n in lengths)
    ):
        return None
    strides, pads, gaps = (
        spread_ints(x, spatial) for x in (stride if stride else kernel, padding, dilation)
    )
    return [Window(*each, ceil_mode) for each in zip(lengths, kernel, strides, pads, gaps)]


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
    return round_to(
        prims.div(summed, product(split[d] for d in dims) if divisor is None else divisor),
        self.dtype,
    )


def _spread_tiles(
    grad: Tensor, shape: Sequence[Size], counts: Sequence[Size], divisor: Size | None = None
) -> Tensor:
    split, dims = _tiled(shape, counts)
    share = prims.div(widen(grad), product(split[d] for d in dims) if divisor is None else divisor)
    rest = tuple(d for d in range(len(split)) if d not in dims)
    return round_to(
        prims.reshape(prims.broadcast_in_dim(share, shape=split, dims=rest), shape=tuple(shape)),
        grad.dtype,
    )


def _tile_counts(windows: Sequence[Window]) -> list[Size] | None:
    """Numbers of windows when they tile the input, else None."""
    plain = all(
        w.padding == 0 and w.size == w.stride and divides(w.size, w.length) for w in windows
    )
    return [w.count for w in windows] if plain else None


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
        part = (
            full_like(a, size)
            if isinstance(size, int)
            else prims.broadcast_in_dim(size, shape=a.shape, dims=(dim,))
        )
        whole = part if whole is None else prims.mul(whole, part)
    return prims.div(a, whole)


def _average_pool(spatial: int) -> None:
    def forward(
        self: Tensor, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        windows = windows_of(self, spatial, kernel_size, stride, padding, ceil_mode=ceil_mode)
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
        ceil_mode: bool,
        count_include_pad: bool, divisor_override: int | None,
    ) -> Tensor:  # fmt: skip
        windows = windows_of(self, spatial, kernel_size, stride, padding, ceil_mode=ceil_mode)
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

    def tap(self, k: int) -> Tensor:
        """Position of tap k of every window."""
        return prims.minimum(prims.add(self.low, k), prims.sub(self.high, 1))

    def masked(self, a: Tensor, dim: int, k: int) -> Tensor:
        """``a`` (per window along dim) where tap k is inside its window, else 0."""
        inside = prims.lt(prims.add(self.low, k), self.high)
        return prims.where(prims.broadcast_in_dim(inside, shape=a.shape, dims=(dim,)), a, 0)

    def share(self, a: Tensor, dim: int) -> Tensor:
        """``a`` over the number of elements of each window."""
        size = to_dtype(prims.sub(self.high, self.low), a.dtype)
        return prims.div(a, prims.broadcast_in_dim(size, shape=a.shape, dims=(dim,)))


def _adaptive_average(spatial: int) -> None:
    def forward(self: Tensor, output_size: Sequence[Size]) -> Tensor:
        lengths = self.shape[self.ndim - spatial :]
        if is_integral(self.dtype):
            return NotImplemented
        if all(map(divides, output_size, lengths)):
            return _average_tiles(self, output_size)
        result = widen(self)
        for dim, count in enumerate(output_size, self.ndim - spatial):
            w = Adaptive(concrete(self.shape[dim]), concrete(count), self.device)
            taps = [
                w.masked(prims.index(result, w.tap(k), dims=(dim,)), dim, k) for k in range(w.size)
            ]
            result = w.share(total(taps), dim)
        return round_to(result, self.dtype)

    def backward(grad_output: Tensor, self: Tensor) -> Tensor:
        counts = grad_output.shape[self.ndim - spatial :]
        if all(map(divides, counts, self.shape[self.ndim - spatial :])):
            return _spread_tiles(grad_output, self.shape, counts)
        result = widen(grad_output)
        for dim, count in enumerate(counts, self.ndim - spatial):
            w = Adaptive(concrete(self.shape[dim]), concrete(count), self.device)
            share = w.share(result, dim)
            result = full(
                (*share.shape[:dim], w.length, *share.shape[dim + 1 :]),
                0,
                share.dtype,
                share.device,
            )
            for k in range(w.size):
                result = prims.index_put(
                    result, w.masked(share, dim, k), w.tap(k), dims=(dim,), accumulate=True
                )
        return round_to(result, grad_output.dtype)

    rules.register(f"_adaptive_avg_pool{spatial}d")(forward)
    rules.register(f"_adaptive_avg_pool{spatial}d_backward")(backward)


# Maxima
# --------------------------------------------------------------------------------------------------


def lowest(dtype: torch.dtype) -> float | int:
    """A number that no element is below."""
    return torch.iinfo(dtype).min if is_integral(dtype) else float("-inf")


Best = tuple[Tensor, list[Tensor]]


def _better(best: Best, other: Best) -> Best:
    """The greater of two, the first of equals, the last of NaNs (eager's scan). A negative position
    was padding.
    """
    takes = prims.bitwise_or(prims.gt(other[0], best[0]), prims.lt(best[1][-1], 0))
    if not is_integral(other[0].dtype):
        takes = prims.bitwise_or(takes, prims.ne(other[0], other[0]))
    return prims.where(takes, other[0], best[0]), [
        prims.where(takes, b, a) for a, b in zip(best[1], other[1])
    ]


def maxima(
    a: Tensor,
    dims: Sequence[int],
    taps: Callable[[Tensor, int, int, Any], list[tuple[Tensor, Tensor]]],
) -> Best:
    """Window maxima and their positions per dim. ``taps(a, number, dim, fill)`` cuts a tensor, with
    positions (vectors). Between dims they have the dtype of ``a``, which is exact.
    """
    state: Best = (a, [])
    for number, dim in reversed(list(enumerate(dims))):
        values = [(widen(value), at) for value, at in taps(state[0], number, dim, lowest(a.dtype))]
        others = [taps(position, number, dim, 0) for position in state[1]]
        best: Best | None = None
        for k, (value, at) in enumerate(values):
            here = prims.broadcast_in_dim(at, shape=value.shape, dims=(dim,))
            found: Best = (value, [*(other[k][0] for other in others), here])
            best = found if best is None else _better(best, found)
        assert best is not None
        state = round_to(best[0], a.dtype), best[1]
    return state[0], state[1][::-1]


def _max_pool(a: Tensor, spatial: int, lengths: Sequence[Size], taps: Any) -> tuple[Tensor, Tensor]:
    first = a.ndim - spatial
    value = a
    # of its own, so that nothing but maxima is left where positions are not used
    for number in reversed(range(spatial)):
        parts = [widen(part) for part, _ in taps(value, number, first + number, lowest(a.dtype))]
        most = parts[0]
        for part in parts[1:]:
            most = prims.maximum(most, part)
        value = round_to(most, a.dtype)
    _, positions = maxima(a, range(first, a.ndim), taps)
    at = positions[0]
    for position, length in zip(positions[1:], lengths[1:]):
        at = prims.add(prims.mul(at, length), position)
    return value, at


def _max_pool_with_indices(spatial: int) -> None:
    def forward(
        self: Tensor,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,),
        dilation: Sizes = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        windows = windows_of(self, spatial, kernel_size, stride, padding, dilation, ceil_mode)
        if windows is None:
            return NotImplemented  # type: ignore[return-value]

        def taps(a: Tensor, number: int, dim: int, fill: Any) -> list[tuple[Tensor, Tensor]]:
            w = windows[number]
            return [(tap, w.positions(k, a.device)) for k, tap in enumerate(w.taps(a, dim, fill))]

        return _max_pool(self, spatial, self.shape[self.ndim - spatial :], taps)

    def backward(
        grad_output: Tensor, self: Tensor, kernel_size: Sizes, stride: Sizes, padding: Sizes,
        dilation: Sizes, ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:  # fmt: skip
        return unpooled(grad_output, indices, self, spatial)

    rules.register(f"max_pool{spatial}d_with_indices")(forward)
    rules.register(f"max_pool{spatial}d_with_indices_backward")(backward)


def unpooled(grad: Tensor, indices: Tensor, like: Tensor, spatial: int) -> Tensor:
    """``grad`` added up at positions (row-major in the last dims) of zeros, which lie like ``like``
    on ``SIDE_BY_SIDE``.
    """
    dims = tuple(range(like.ndim))
    channels = like.ndim - spatial - 1
    if channels >= 0 and like.device.type in SIDE_BY_SIDE and same_size(like.stride()[channels], 1):
        dims = (*dims[:channels], *dims[channels + 1 :], channels)
    first = dims.index(like.ndim - spatial)

    def turned(a: Tensor, order: tuple[int, ...]) -> Tensor:
        return a if order == tuple(range(a.ndim)) else prims.permute(a, dims=order)

    def rows(a: Tensor) -> Tensor:
        shape = [a.shape[dim] for dim in dims]
        shape[first : first + spatial] = [product(shape[first : first + spatial])]
        return prims.reshape(turned(a, dims), shape=tuple(shape))

    grad, indices = rows(grad), rows(indices)
    places = product(like.shape[like.ndim - spatial :])
    zeros = full(
        (*grad.shape[:first], places, *grad.shape[first + 1 :]), 0, grad.dtype, grad.device
    )
    found = prims.reshape(
        scatter_add(zeros, first, indices, grad), shape=tuple(like.shape[dim] for dim in dims)
    )
    return turned(found, tuple(map(dims.index, range(like.ndim))))


def _adaptive_max(spatial: int) -> None:
    def forward(self: Tensor, output_size: Sizes) -> tuple[Tensor, Tensor]:
        lengths = [concrete(size) for size in self.shape[self.ndim - spatial :]]
        windows = [Adaptive(n, count, self.device) for n, count in zip(lengths, output_size)]

        def taps(a: Tensor, number: int, dim: int, fill: Any) -> list[tuple[Tensor, Tensor]]:
            at = [windows[number].tap(k) for k in range(windows[number].size)]
            return [(prims.index(a, positions, dims=(dim,)), positions) for positions in at]

        return _max_pool(self, spatial, lengths, taps)

    rules.register(f"adaptive_max_pool{spatial}d")(forward)
    rules.register(f"adaptive_max_pool{spatial}d_backward")(
        lambda grad_output, self, indices: unpooled(grad_output, indices, self, spatial)
    )


for _spatial in (2, 3):
    _average_pool(_spatial)
    _adaptive_average(_spatial)
    _max_pool_with_indices(_spatial)
    _adaptive_max(_spatial)


@rules.register("fractional_max_pool2d_backward", "fractional_max_pool3d_backward")
def fractional_max_pool_backward(
    grad_output: Tensor, self: Tensor, kernel_size: Sizes, output_size: Sizes, indices: Tensor
) -> Tensor:
    """The gradient at the chosen positions."""
    return unpooled(grad_output, indices, self, len(kernel_size))


@rules.register("max_unpool2d", "max_unpool3d")
def max_unpool(
    self: Tensor,
    indices: Tensor,
    output_size: Sequence[Size],
    stride: Any = None,
    padding: Any = None,
) -> Tensor:
    """Values at the positions that pooling took them from, zeros elsewhere."""
    spatial = len(output_size)
    batch = tuple(self.shape[: self.ndim - spatial])
    flat = (*batch, product(self.shape[len(batch) :]))
    zeros = full((*batch, product(output_size)), 0, self.dtype, self.device)
    found = prims.scatter(
        zeros, prims.reshape(indices, shape=flat), prims.reshape(self, shape=flat), dim=len(batch)
    )
    return prims.reshape(found, shape=(*batch, *output_size))


# Columns
# --------------------------------------------------------------------------------------------------


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
