"""Sampling at positions that a tensor gives, and its derivatives. Dims: input (N, C, *sizes), grid
(N, *out, spatial).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from primops import prims
from primops.decompositions.interpolation import CUBIC, cubic_weights
from primops.decompositions.pooling import total
from primops.meta import Size
from primops.operand import (
    Tensor,
    along,
    full_like,
    iota,
    round_to,
    slice_dim,
    to_dtype,
    unsqueeze,
    widen,
    zeros,
)
from primops.registry import DecompositionTable
from primops.shapes import product

rules = DecompositionTable()
BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


class Axis:
    """One coordinate of the grid as input position, with the slope of that map."""

    def __init__(
        self, coordinate: Tensor, size: Size, align: bool, is_cpu: bool, skips: bool
    ) -> None:
        self.size, self.align = size, align
        self.nan_is_last, self.keeps_nan = is_cpu and skips, skips
        scaled = prims.add(coordinate, 1)
        if align:
            self.at = prims.mul(prims.div(scaled, 2), size - 1)
            self.slope: Tensor = full_like(coordinate, (size - 1) / 2)
        else:
            self.at = prims.div(prims.sub(prims.mul(scaled, size), 1), 2)
            self.slope = full_like(coordinate, size / 2)

    def inside(self, at: Tensor, mode: int, slope: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """A position moved into the input as the padding mode says, and the slope through that."""
        if mode == REFLECTION:
            low, high = (0, 2 * (self.size - 1)) if self.align else (-1, 2 * self.size - 1)
            if isinstance(self.size, int) and low == high:
                return full_like(at, 0), None if slope is None else full_like(at, 0)
            at, slope = self._reflected(at, low / 2, (high - low) / 2, slope)
        if mode != ZEROS:
            if slope is not None:
                outside = prims.bitwise_or(prims.le(at, 0), prims.ge(at, self.size - 1))
                slope = prims.where(outside, 0, slope)
            at = self._clamped(at, slope is not None)
        return at, slope

    def _clamped(self, at: Tensor, in_derivative: bool) -> Tensor:
        if in_derivative and self.keeps_nan:
            return prims.where(
                prims.le(at, 0), 0, prims.where(prims.ge(at, self.size - 1), self.size - 1, at)
            )
        if self.nan_is_last:
            return prims.maximum(0, prims.where(prims.lt(at, self.size - 1), at, self.size - 1))
        return prims.minimum(self.size - 1, prims.where(prims.gt(at, 0), at, 0))

    def _reflected(
        self, at: Tensor, low: float, span: float, slope: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        moved = prims.sub(at, low)
        distance = prims.abs(moved)
        extra = prims.fmod(distance, span)
        flips = prims.floor(prims.div(distance, span))
        odd = prims.ne(prims.fmod(flips, 2), 0)
        found = prims.where(odd, prims.add(prims.sub(span, extra), low), prims.add(extra, low))
        if slope is not None:
            slope = prims.where(prims.ne(odd, prims.lt(moved, 0)), prims.neg(slope), slope)
        return found, slope


Tap = tuple[Tensor, Tensor, Tensor | None]


class Sampler:
    """Reads and writes the input at integer positions; outside it there are zeros.

    Eager's vector kernel (images on the CPU) multiplies what is outside by 0, the others skip it: a
    weight that is no number does not count there.
    """

    def __init__(self, input: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> None:
        is_cpu = input.device.type == "cpu"
        self.skips = not is_cpu or input.ndim == 5
        self.shape = tuple(input.shape)
        self.sizes = self.shape[2:]
        self.out = tuple(grid.shape[1:-1])
        self.mode, self.padding = mode, padding
        rank = grid.ndim - 1
        self.axes = []
        for k, size in enumerate(self.sizes):
            last = len(self.sizes) - k  # the grid's last coordinate is the first spatial dim
            part = prims.reshape(slice_dim(grid, rank, last - 1, last), shape=grid.shape[:-1])
            self.axes.append(Axis(part, size, align, is_cpu, self.skips))

    def taps(self, axis: Axis, derivative: bool) -> list[Tap]:
        """(integer position, weight, derivative of the weight by the grid) along one axis."""
        if self.mode == BICUBIC:
            return self._cubic(axis, derivative)
        at, slope = axis.inside(axis.at, self.padding, axis.slope if derivative else None)
        if self.mode == NEAREST:
            return [(prims.round(at), full_like(at, 1), None)]
        low = prims.floor(at)
        high = prims.add(low, 1)
        return [
            (low, prims.sub(high, at), None if slope is None else prims.neg(slope)),
            (high, prims.sub(at, low), slope),
        ]

    def _cubic(self, axis: Axis, derivative: bool) -> list[Tap]:
        floor = prims.floor(axis.at)
        t = prims.sub(axis.at, floor)
        slopes: list[Any] = (
            [prims.mul(s, axis.slope) for s in cubic_slopes(t)] if derivative else [None] * 4
        )
        places = [axis.inside(prims.add(floor, k - 1), self.padding, None)[0] for k in range(4)]
        return list(zip(places, cubic_weights(t), slopes))

    def _flat(self, places: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Row-major positions, clamped, as (N, 1, out), and where they are inside the input."""
        inside: Tensor = None
        at: Tensor = None
        for place, size in zip(places, self.sizes):
            fits = prims.bitwise_and(prims.ge(place, 0), prims.le(place, size - 1))
            inside = fits if inside is None else prims.bitwise_and(inside, fits)
            # NaN is nowhere, but its conversion must not leave the input.
            index = prims.convert(prims.where(fits, place, 0), dtype=torch.int64)
            at = index if at is None else prims.add(prims.mul(at, size), index)
        return at, inside

    def _spread(self, a: Tensor) -> Tensor:
        """(N, *out) as (N, C, P)."""
        n, c, p = self.shape[0], self.shape[1], product(self.out)
        return prims.broadcast_in_dim(prims.reshape(a, shape=(n, p)), shape=(n, c, p), dims=(0, 2))

    def read(self, source: Tensor, places: Sequence[Tensor]) -> Tensor:
        """Values (N, C, P)."""
        at, inside = self._flat(places)
        flat = prims.reshape(source, shape=(*self.shape[:2], product(self.sizes)))
        return prims.where(self._spread(inside), prims.gather(flat, self._spread(at), dim=2), 0)

    def counted(self, part: Tensor, places: Sequence[Tensor]) -> Tensor:
        """A part of a result, for each channel or none, where its places are inside the input."""
        if not self.skips:
            return part
        inside = self._flat(places)[1]
        return prims.where(self._spread(inside) if part.shape != inside.shape else inside, part, 0)

    def write(self, target: Tensor, values: Tensor, places: Sequence[Tensor]) -> Tensor:
        """``values`` (N, C, P) added to ``target`` (N, C, size)."""
        at, inside = map(self._spread, self._flat(places))
        return prims.scatter_add(target, at, prims.where(inside, values, 0), dim=2)


def cubic_slopes(t: Tensor) -> list[Tensor]:
    """Derivatives of ``cubic_weights`` by the position."""

    def near(x: Tensor) -> Tensor:
        return prims.mul(prims.sub(prims.mul(x, 3 * (CUBIC + 2)), 2 * (CUBIC + 3)), x)

    def far(x: Tensor) -> Tensor:
        return prims.add(prims.mul(prims.sub(prims.mul(x, 3 * CUBIC), 10 * CUBIC), x), 8 * CUBIC)

    rest = prims.sub(1, t)
    ahead = far(prims.add(t, 1)), near(t)
    return [*ahead, *map(prims.neg, (near(rest), far(prims.add(rest, 1))))]


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """Weighted values around each position."""
    sampler = Sampler(input, widen(grid), interpolation_mode, padding_mode, align_corners)
    wide = widen(input)

    def corner_value(corner: tuple[Tap, ...]) -> Tensor:
        places, weights, _ = zip(*corner)
        weight = functools.reduce(prims.mul, weights)
        value = prims.mul(sampler.read(wide, places), sampler._spread(weight))
        return sampler.counted(value, places)

    corners = itertools.product(*(sampler.taps(axis, False) for axis in sampler.axes))
    result = total(map(corner_value, corners))
    return round_to(prims.reshape(result, shape=(*input.shape[:2], *sampler.out)), input.dtype)


def grid_sampler_backward(
    grad_output: Tensor, input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int,
    align_corners: bool, output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of input and grid."""
    sampler = Sampler(input, widen(grid), interpolation_mode, padding_mode, align_corners)
    wide = widen(input)
    flat = (*input.shape[:2], product(sampler.sizes))
    grad = prims.reshape(widen(grad_output), shape=(*input.shape[:2], product(sampler.out)))
    of_input = zeros(flat, wide)
    of_grid: list[Any] = [None] * len(sampler.axes)
    for corner in itertools.product(*(sampler.taps(axis, True) for axis in sampler.axes)):
        places, weights, slopes = zip(*corner)
        if output_mask[0]:
            whole = functools.reduce(prims.mul, weights)
            of_input = sampler.write(of_input, prims.mul(grad, sampler._spread(whole)), places)
        if interpolation_mode == NEAREST:
            continue
        summed = prims.sum(prims.mul(grad, sampler.read(wide, places)), dims=(1,))
        summed = prims.reshape(summed, shape=(input.shape[0], *sampler.out))
        for k, slope in enumerate(slopes):
            factors = [summed, slope, *weights[:k], *weights[k + 1 :]]
            part = sampler.counted(functools.reduce(prims.mul, factors), places)
            of_grid[k] = part if of_grid[k] is None else prims.add(of_grid[k], part)
    last = grid.ndim - 1
    parts = [unsqueeze(g, last) for g in reversed(of_grid) if g is not None]
    grad_grid = prims.cat(*parts, dim=last) if parts else full_like(widen(grid), 0)
    grad_input = None
    if output_mask[0]:
        grad_input = round_to(prims.reshape(of_input, shape=input.shape), input.dtype)
    return grad_input, to_dtype(grad_grid, grid.dtype)


rules.register("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")(grid_sampler)
rules.register("grid_sampler_2d_backward", "grid_sampler_3d_backward")(grid_sampler_backward)


@rules.register("affine_grid_generator")
def affine_grid_generator(theta: Tensor, size: Sequence[Size], align_corners: bool) -> Tensor:
    """Positions in [-1, 1] mapped by one matrix per batch element."""
    spatial = len(size) - 2
    wide = widen(theta)
    shape = (size[0], *size[2:], spatial)

    def term(k: int) -> Tensor:
        column = prims.reshape(slice_dim(wide, 2, k, k + 1), shape=(size[0], spatial))
        column = prims.broadcast_in_dim(column, shape=shape, dims=(0, spatial + 1))
        if k == spatial:
            return column
        at = _even_steps(size[len(size) - 1 - k], align_corners, wide)
        return prims.mul(column, along(at, shape, spatial - k))

    return round_to(total(map(term, range(spatial + 1))), theta.dtype)


def _even_steps(count: Size, align: bool, like: Tensor) -> Tensor:
    position = iota(count, like.dtype, like.device)
    if align:
        if count != 1:
            return prims.sub(prims.mul(position, 2 / (count - 1)), 1)
        return full_like(position, 0)
    return prims.sub(prims.div(prims.add(prims.mul(position, 2), 1), count), 1)
