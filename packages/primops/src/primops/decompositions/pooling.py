"""Pooling and interpolation. Windows that overlap or do not divide the input stay ATen calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from primops import prims
from primops.meta import Size
from primops.operand import Tensor, full_like, iota, round_to, to_dtype, widen
from primops.promotion import is_integral
from primops.registry import DecompositionTable
from primops.shapes import divides, product, quotient

rules = DecompositionTable()


def _pair(values: Sequence[int] | int) -> tuple[int, ...]:
    return (values, values) if isinstance(values, int) else tuple(values) * (2 if len(values) == 1 else 1)


def _windows(shape: Sequence[Size], counts: Sequence[Size]) -> tuple[tuple[Size, ...], tuple[int, int]]:
    """The last two dims split into (count, window) pairs, and where the window dims are."""
    rank = len(shape)
    split = (*shape[:-2], counts[0], quotient(shape[-2], counts[0]), counts[1], quotient(shape[-1], counts[1]))
    return split, (rank - 1, rank + 1)


def _average(self: Tensor, counts: Sequence[Size], divisor: Size | None = None) -> Tensor:
    split, dims = _windows(self.shape, counts)
    total = prims.sum(prims.reshape(widen(self), shape=split), dims=dims)
    size = product(split[dim] for dim in dims) if divisor is None else divisor
    return round_to(prims.div(total, size), self.dtype)


def _average_backward(grad_output: Tensor, self: Tensor, counts: Sequence[Size], divisor: Size | None = None) -> Tensor:
    split, dims = _windows(self.shape, counts)
    size = product(split[dim] for dim in dims) if divisor is None else divisor
    share = prims.div(widen(grad_output), size)
    rest = tuple(dim for dim in range(len(split)) if dim not in dims)
    spread = prims.broadcast_in_dim(share, shape=split, dims=rest)
    return round_to(prims.reshape(spread, shape=tuple(self.shape)), self.dtype)


def _tiles(self: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> tuple[Size, Size] | None:
    """Numbers of windows when they tile the input, else None."""
    shape = self.shape
    kernel, stride = _pair(kernel), _pair(stride) if stride else _pair(kernel)
    if (
        is_integral(self.dtype)
        or kernel != stride
        or any(_pair(padding))
        or not all(divides(k, size) for size, k in zip(shape[-2:], kernel))
    ):
        return None
    return shape[-2] // kernel[0], shape[-1] // kernel[1]


@rules.register("avg_pool2d")
def avg_pool2d(
    self: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Mean of windows."""
    counts = _tiles(self, kernel_size, stride, padding)
    return NotImplemented if counts is None else _average(self, counts, divisor_override)


@rules.register("avg_pool2d_backward")
def avg_pool2d_backward(
    grad_output: Tensor, self: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    """The gradient shared by the window."""
    counts = _tiles(self, kernel_size, stride, padding)
    return NotImplemented if counts is None else _average_backward(grad_output, self, counts, divisor_override)


@rules.register("_adaptive_avg_pool2d")
def adaptive_avg_pool2d(self: Tensor, output_size: Sequence[Size]) -> Tensor:
    """Mean of as many windows as the output has elements."""
    if is_integral(self.dtype) or not all(divides(count, size) for size, count in zip(self.shape[-2:], output_size)):
        return NotImplemented
    return _average(self, output_size)


@rules.register("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """The gradient shared by the window."""
    counts = grad_output.shape[-2:]
    if not all(divides(count, size) for size, count in zip(self.shape[-2:], counts)):
        return NotImplemented
    return _average_backward(grad_output, self, counts)


# Interpolation ---------------------------------------------------------------------------------------------------------------


def _ratio(numerator: Size, denominator: Size, like: Tensor) -> Tensor | float:
    """A quotient of sizes as an operand for ``like``: a number, or a tensor when it is symbolic."""
    if isinstance(numerator, int) and isinstance(denominator, int):
        return numerator / denominator
    return prims.div(full_like(like, numerator), denominator)


def _scale(size: Size, out: Size, given: float | None, like: Tensor) -> Tensor | float:
    """Input positions per output position."""
    return 1.0 / given if given is not None and given > 0 else _ratio(size, out, like)


def _nearest(size: Size, out: Size, given: float | None, device: torch.device, exact: bool) -> Tensor:
    position = iota(out, torch.float32, device)
    position = prims.add(position, 0.5) if exact else position
    source = prims.convert(prims.floor(prims.mul(position, _scale(size, out, given, position))), dtype=torch.int64)
    return prims.minimum(source, size - 1)


def _output_size(self: Tensor, output_size: Sequence[Size] | None, scales: Sequence[float] | None) -> list[Size]:
    if output_size is not None:
        return list(output_size)
    assert scales is not None
    return [int(size * scale) for size, scale in zip(self.shape[-2:], scales)]


def _repeats(size: Size, out: Size, given: float | None) -> int | None:
    """How often each element is repeated, when that is a whole number."""
    if not (isinstance(size, int) and isinstance(out, int)) or size == 0 or out % size:
        return None
    return out // size if given is None or given == out // size else None


def _upsample_nearest(self: Tensor, out: Sequence[Size], scales: Sequence[float | None], exact: bool) -> Tensor:
    factors = [_repeats(size, o, s) for size, o, s in zip(self.shape[-2:], out, scales)]
    batch = self.shape[:-2]
    if all(factor is not None for factor in factors):
        height, width = self.shape[-2:]
        rank = self.ndim
        spread = prims.broadcast_in_dim(
            self, shape=(*batch, height, factors[0], width, factors[1]), dims=(*range(rank - 1), rank)
        )  # fmt: skip
        return prims.reshape(spread, shape=(*batch, *out))
    rows = _nearest(self.shape[-2], out[0], scales[0], self.device, exact)
    columns = _nearest(self.shape[-1], out[1], scales[1], self.device, exact)
    return _pick(self, rows, columns)


def _pick(a: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``a`` at every pair of a row and a column."""
    shape = (rows.shape[0], columns.shape[0])
    row = prims.broadcast_in_dim(rows, shape=shape, dims=(0,))
    column = prims.broadcast_in_dim(columns, shape=shape, dims=(1,))
    return prims.index(a, row, column, dims=(a.ndim - 2, a.ndim - 1))


@rules.register("upsample_nearest2d")
def upsample_nearest2d(
    self: Tensor, output_size: Sequence[Size], scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    """The nearest element, rounding down."""
    return _upsample_nearest(self, output_size, (scales_h, scales_w), False)


@rules.register("_upsample_nearest_exact2d")
def upsample_nearest_exact2d(
    self: Tensor, output_size: Sequence[Size], scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    """The nearest element, by centres."""
    return _upsample_nearest(self, output_size, (scales_h, scales_w), True)


@rules.register("upsample_nearest2d.vec")
def upsample_nearest2d_vec(input: Tensor, output_size: Sequence[Size] | None, scale_factors: Sequence[float] | None) -> Tensor:
    """The nearest element, rounding down."""
    scales = scale_factors or (None, None)
    return _upsample_nearest(input, _output_size(input, output_size, scale_factors), scales, False)


@rules.register("upsample_nearest2d_backward")
def upsample_nearest2d_backward(
    grad_output: Tensor, output_size: Sequence[Size], input_size: Sequence[Size], scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:  # fmt: skip
    """Sums of the repeated elements, when each was repeated equally often."""
    factors = [_repeats(size, out, s) for size, out, s in zip(input_size[-2:], output_size, (scales_h, scales_w))]
    if any(factor is None for factor in factors):
        return NotImplemented
    split, dims = _windows(grad_output.shape, input_size[-2:])
    return round_to(prims.sum(prims.reshape(widen(grad_output), shape=split), dims=dims), grad_output.dtype)


def _linear(
    size: Size, out: Size, given: float | None, align: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Lower and upper source positions and the weight of the upper one, for every output position."""
    position = iota(out, dtype, device)
    if align:
        step = 0.0 if isinstance(out, int) and out < 2 else _ratio(size - 1, out - 1, position)
        source = prims.mul(position, step)
    else:
        scale = _scale(size, out, given, position)
        source = prims.maximum(prims.sub(prims.mul(prims.add(position, 0.5), scale), 0.5), 0.0)
    low = prims.minimum(prims.convert(source, dtype=torch.int64), size - 1)
    high = prims.minimum(prims.add(low, 1), size - 1)
    weight = prims.minimum(prims.maximum(prims.sub(source, to_dtype(low, dtype)), 0.0), 1.0)
    return low, high, weight


@rules.register("upsample_bilinear2d")
def upsample_bilinear2d(
    self: Tensor, output_size: Sequence[Size], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    """Weighted mean of the four elements around a position."""
    wide = widen(self)
    shape = (*self.shape[:-2], *output_size)
    rank = len(shape)
    low_y, high_y, y = _linear(self.shape[-2], output_size[0], scales_h, align_corners, wide.dtype, self.device)
    low_x, high_x, x = _linear(self.shape[-1], output_size[1], scales_w, align_corners, wide.dtype, self.device)
    y = prims.broadcast_in_dim(y, shape=shape, dims=(rank - 2,))
    x = prims.broadcast_in_dim(x, shape=shape, dims=(rank - 1,))

    def row(at: Tensor) -> Tensor:
        left, right = _pick(wide, at, low_x), _pick(wide, at, high_x)
        return prims.add(prims.mul(left, prims.sub(1, x)), prims.mul(right, x))

    result = prims.add(prims.mul(row(low_y), prims.sub(1, y)), prims.mul(row(high_y), y))
    return round_to(result, self.dtype)


@rules.register("upsample_bilinear2d.vec")
def upsample_bilinear2d_vec(
    input: Tensor, output_size: Sequence[Size] | None, align_corners: bool, scale_factors: Sequence[float] | None
) -> Tensor:
    """Weighted mean of the four elements around a position."""
    scales = scale_factors or (None, None)
    return upsample_bilinear2d(input, _output_size(input, output_size, scale_factors), align_corners, *scales)
