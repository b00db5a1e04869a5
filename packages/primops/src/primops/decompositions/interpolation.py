"""Interpolation and padding, dim by dim: each output position reads a few input positions with
weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from primops import prims
from primops.decompositions.pooling import total
from primops.meta import Size
from primops.operand import (
    Tensor,
    add_at,
    along,
    broadcast_to,
    full_like,
    iota,
    kept,
    pad_dim,
    round_to,
    slice_dim,
    spread,
    to_dtype,
    widen,
    zeros,
)
from primops.promotion import is_integral
from primops.registry import DecompositionTable
from primops.shapes import is_negative, is_zero, resized

rules = DecompositionTable()
Scales = Sequence[float | None]
CUBIC = -0.75  # the kernel's free parameter, as eager


# Positions and weights
# --------------------------------------------------------------------------------------------------


def _ratio(numerator: Size, denominator: Size, like: Tensor) -> Tensor | float:
    """A quotient of sizes as an operand for ``like``: a number, or a tensor when it is symbolic."""
    if isinstance(numerator, int) and isinstance(denominator, int):
        return numerator / denominator
    return prims.div(full_like(like, numerator), denominator)


def _scale(size: Size, out: Size, given: float | None, like: Tensor) -> Tensor | float:
    """Input positions per output position."""
    return 1.0 / given if given is not None and given > 0 else _ratio(size, out, like)


def _nearest(
    size: Size, out: Size, given: float | None, device: torch.device, exact: bool
) -> Tensor:
    position = iota(out, torch.float32, device)
    position = prims.add(position, 0.5) if exact else position
    source = prims.floor(prims.mul(position, _scale(size, out, given, position)))
    return prims.minimum(prims.convert(source, dtype=torch.int64), size - 1)


def _source(
    size: Size, out: Size, given: float | None, align: bool, dtype: torch.dtype,
    device: torch.device,
) -> Tensor:  # fmt: skip
    """The real-valued input position of every output position."""
    position = iota(out, dtype, device)
    if align:
        is_single = isinstance(out, int) and out < 2
        return prims.mul(position, 0.0 if is_single else _ratio(size - 1, out - 1, position))
    return prims.sub(prims.mul(prims.add(position, 0.5), _scale(size, out, given, position)), 0.5)


Taps = list[tuple[Tensor, Tensor]]


def linear_taps(source: Tensor, size: Size, align: bool) -> Taps:
    """Both neighbours of a position (vectors) with their weights."""
    source = source if align else prims.maximum(source, 0.0)
    low = prims.minimum(prims.convert(source, dtype=torch.int64), size - 1)
    high = prims.minimum(prims.add(low, 1), size - 1)
    weight = prims.minimum(prims.maximum(prims.sub(source, to_dtype(low, source.dtype)), 0.0), 1.0)
    return [(low, prims.sub(1, weight)), (high, weight)]


def cubic_weights(t: Tensor) -> list[Tensor]:
    """Weights of the four neighbours of a position that lies ``t`` after the second."""

    def near(x: Tensor) -> Tensor:
        inner = prims.sub(prims.mul(x, CUBIC + 2), CUBIC + 3)
        return prims.add(prims.mul(prims.mul(inner, x), x), 1)

    def far(x: Tensor) -> Tensor:
        inner = prims.add(prims.mul(prims.sub(prims.mul(x, CUBIC), 5 * CUBIC), x), 8 * CUBIC)
        return prims.sub(prims.mul(inner, x), 4 * CUBIC)

    rest = prims.sub(1, t)
    return [far(prims.add(t, 1)), near(t), near(rest), far(prims.add(rest, 1))]


def cubic_taps(source: Tensor, size: Size, align: bool) -> Taps:
    """The four neighbours of a position, at the edges repeated, with their weights."""
    floor = prims.floor(source)
    at = prims.convert(floor, dtype=torch.int64)
    places = [prims.maximum(prims.minimum(prims.add(at, k - 1), size - 1), 0) for k in range(4)]
    return list(zip(places, cubic_weights(prims.sub(source, floor))))


def _weighted(a: Tensor, weight: Tensor, dim: int) -> Tensor:
    return prims.mul(a, along(weight, a.shape, dim))


def _read(a: Tensor, dim: int, taps: Taps) -> Tensor:
    return total([_weighted(prims.index(a, at, dims=(dim,)), weight, dim) for at, weight in taps])


def _read_back(grad: Tensor, dim: int, size: Size, taps: Taps) -> Tensor:
    """The adjoint of ``_read``."""
    result = zeros(resized(grad.shape, dim, size), grad)
    for at, weight in taps:
        result = add_at(result, dim, at, _weighted(grad, weight, dim))
    return result


# Operators
# --------------------------------------------------------------------------------------------------


Rules = tuple[Callable[..., Tensor], Callable[..., Tensor]]


def _with_variants(name: str, spatial: int, pair: Rules, flags: int) -> None:
    """Registers an operator, its ``vec`` overload and its derivative, as a pair of functions
    computes them. ``flags``: arguments between size and scales.
    """
    forward, backward = pair

    def plain(self: Tensor, output_size: Sequence[Size], *rest: Any, **scales: Any) -> Tensor:
        return forward(self, output_size, *rest[:flags], rest[flags:] or [None] * spatial)

    def vec(input: Tensor, output_size: Sequence[Size] | None, *rest: Any) -> Tensor:
        if output_size is None:
            output_size = [int(size * scale) for size, scale in zip(input.shape[2:], rest[flags])]
        return plain(input, output_size, *rest[:flags], *(rest[flags] or ()))

    def derivative(
        grad_output: Tensor, output_size: Sequence[Size], input_size: Sequence[Size], *rest: Any
    ) -> Tensor:
        scales = rest[flags:] or [None] * spatial
        return backward(grad_output, input_size, *rest[:flags], scales)

    rules.register(name)(plain)
    rules.register(f"{name}.vec")(vec)
    rules.register(f"{name}_backward")(derivative)


def _repeats(size: Size, out: Size, given: float | None) -> int | None:
    """How often each element is repeated, when that is a whole number."""
    if not (isinstance(size, int) and isinstance(out, int)) or size == 0 or out % size:
        return None
    return out // size if given is None or given == out // size else None


def _nearest_pair(exact: bool) -> Rules:
    def forward(self: Tensor, out: Sequence[Size], scales: Scales) -> Tensor:
        for dim, (size, given) in enumerate(zip(out, scales), 2):
            repeated = _repeats(self.shape[dim], size, given)
            if repeated is None:
                at = _nearest(self.shape[dim], size, given, self.device, exact)
                self = prims.index(self, at, dims=(dim,))
            else:
                shape = resized(self.shape, dim, self.shape[dim], repeated)
                repeats = spread(self, shape, (dim + 1,))
                self = prims.reshape(repeats, shape=resized(self.shape, dim, size))
        return self

    def backward(grad_output: Tensor, input_size: Sequence[Size], scales: Scales) -> Tensor:
        result = widen(grad_output)
        for dim, (size, given) in enumerate(zip(input_size[2:], scales), 2):
            out = result.shape[dim]
            repeated = _repeats(size, out, given)
            if repeated is None:
                target = zeros(resized(result.shape, dim, size), result)
                at = _nearest(size, out, given, result.device, exact)
                result = add_at(target, dim, at, result)
            else:
                split = resized(result.shape, dim, size, repeated)
                result = prims.sum(prims.reshape(result, shape=split), dims=(dim + 1,))
        return round_to(result, grad_output.dtype)

    return forward, backward


def _smooth_pair(taps: Callable[..., Taps]) -> Rules:
    def forward(self: Tensor, out: Sequence[Size], align: bool, scales: Scales) -> Tensor:
        if is_integral(self.dtype):
            return NotImplemented
        result = widen(self)
        for dim in reversed(range(2, self.ndim)):
            size, given = self.shape[dim], scales[dim - 2]
            source = _source(size, out[dim - 2], given, align, result.dtype, self.device)
            result = _read(result, dim, taps(source, size, align))
        return round_to(result, self.dtype)

    def backward(
        grad_output: Tensor, input_size: Sequence[Size], align: bool, scales: Scales
    ) -> Tensor:
        result = widen(grad_output)
        for dim in range(2, len(input_size)):
            size, out = input_size[dim], grad_output.shape[dim]
            source = _source(size, out, scales[dim - 2], align, result.dtype, result.device)
            result = _read_back(result, dim, size, taps(source, size, align))
        return round_to(result, grad_output.dtype)

    return forward, backward


for _spatial in (1, 2, 3):
    _with_variants(f"upsample_nearest{_spatial}d", _spatial, _nearest_pair(False), 0)
    _with_variants(f"_upsample_nearest_exact{_spatial}d", _spatial, _nearest_pair(True), 0)
for _spatial, _name in enumerate(("linear1d", "bilinear2d", "trilinear3d"), 1):
    _with_variants(f"upsample_{_name}", _spatial, _smooth_pair(linear_taps), 1)
_with_variants("upsample_bicubic2d", 2, _smooth_pair(cubic_taps), 1)


# Padding by repetition
# --------------------------------------------------------------------------------------------------


def _pairs(a_rank: int, padding: Sequence[Size]) -> list[tuple[int, Size, Size]]:
    """(dim, before, after) for pads given in pairs from the last dim backwards."""
    return [(a_rank - 1 - k, padding[2 * k], padding[2 * k + 1]) for k in range(len(padding) // 2)]


def _cropped(low: Size, high: Size) -> tuple[Size, Size, Size, Size]:
    """What negative pads cut off, and the pads that are left."""
    cut = [-n if is_negative(n) else 0 for n in (low, high)]
    return cut[0], cut[1], low + cut[0], high + cut[1]


def _pad(self: Tensor, padding: Sequence[Size], reflect: bool) -> Tensor:
    for dim, low, high in _pairs(self.ndim, padding):
        cut_low, cut_high, low, high = _cropped(low, high)
        size = self.shape[dim]
        if isinstance(size, int) and cut_low + cut_high > size:
            return NotImplemented
        inner = pad_dim(self, dim, -cut_low, -cut_high)
        if reflect:
            before = slice_dim(self, dim, 1, low + 1)
            after = slice_dim(self, dim, size - 1 - high, size - 1)
            pieces = [prims.flip(before, dims=(dim,)), inner, prims.flip(after, dims=(dim,))]
        else:
            first = slice_dim(self, dim, 0, 1)
            before = broadcast_to(first, resized(self.shape, dim, low))
            last = slice_dim(self, dim, size - 1, size)
            pieces = [before, inner, broadcast_to(last, resized(self.shape, dim, high))]
        filled = [p for p in pieces if not is_zero(p.shape[dim])]
        self = prims.cat(*(filled or [self]), dim=dim)
    return self


def _pad_backward(
    grad_output: Tensor, self: Tensor, padding: Sequence[Size], reflect: bool
) -> Tensor:
    result = widen(grad_output)
    for dim, low, high in _pairs(self.ndim, padding):
        cut_low, cut_high, low, high = _cropped(low, high)
        length = result.shape[dim]
        size = length - low - high + cut_low + cut_high
        if isinstance(size, int) and cut_low + cut_high > size:
            return NotImplemented
        before = slice_dim(result, dim, 0, low)
        after = slice_dim(result, dim, length - high, length)
        inner = pad_dim(slice_dim(result, dim, low, length - high), dim, cut_low, cut_high)
        for part, at_start in ((before, True), (after, False)):
            count = part.shape[dim]
            if is_zero(count):
                continue
            if reflect:
                start = 1 if at_start else size - 1 - count
                part = pad_dim(prims.flip(part, dims=(dim,)), dim, start, size - start - count)
            else:
                summed = kept(prims.sum(part, dims=(dim,)), (dim,))
                pads = (0, size - 1) if at_start else (size - 1, 0)
                part = pad_dim(summed, dim, *pads)
            inner = prims.add(inner, part)
        result = inner
    return round_to(result, grad_output.dtype)


for _spatial, _kind in itertools.product((1, 2, 3), ("reflection", "replication")):
    _reflect = _kind == "reflection"
    rules.register(f"{_kind}_pad{_spatial}d")(partial(_pad, reflect=_reflect))
    rules.register(f"{_kind}_pad{_spatial}d_backward")(partial(_pad_backward, reflect=_reflect))
