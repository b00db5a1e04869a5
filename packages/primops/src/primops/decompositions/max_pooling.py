"""Max pooling, adaptive and fractional too, its indices and its adjoints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from primops import prims
from primops.decompositions.indexing import scatter_add
from primops.decompositions.pooling import Adaptive, Sizes, windows_of
from primops.meta import Size
from primops.operand import Tensor, along, round_to, widen, zeros
from primops.promotion import is_integral, limits
from primops.registry import DecompositionTable
from primops.shapes import product, resized, same_size

rules = DecompositionTable()
SIDE_BY_SIDE = {"cuda"}
"""Devices whose threads add to adjacent memory at once; elsewhere a plane should stay in cache."""


Best = tuple[Tensor, list[Tensor]]


def _better(best: Best, other: Best) -> Best:
    """The greater of two, the first of equals, the last of NaNs (eager's scan). A negative position
    was padding.
    """
    takes = prims.bitwise_or(prims.gt(other[0], best[0]), prims.lt(best[1][-1], 0))
    if not is_integral(other[0].dtype):
        takes = prims.bitwise_or(takes, prims.ne(other[0], other[0]))
    value = prims.where(takes, other[0], best[0])
    return value, [prims.where(takes, b, a) for a, b in zip(best[1], other[1])]


def maxima(
    a: Tensor,
    dims: Sequence[int],
    taps: Callable[[Tensor, int, int, Any], list[tuple[Tensor, Tensor]]],
) -> Best:
    """Window maxima and their positions per dim. ``taps(a, number, dim, fill)`` cuts a tensor, with
    positions (vectors). Between dims they have the dtype of ``a``, which is exact.
    """
    state: Best = (a, [])
    least = limits(a.dtype)[0]
    for number, dim in reversed(list(enumerate(dims))):
        values = [(widen(value), at) for value, at in taps(state[0], number, dim, least)]
        others = [taps(position, number, dim, 0) for position in state[1]]
        candidates = (
            (value, [*(other[k][0] for other in others), along(at, value.shape, dim)])
            for k, (value, at) in enumerate(values)
        )
        best = functools.reduce(_better, candidates)
        state = round_to(best[0], a.dtype), best[1]
    return state[0], state[1][::-1]


def _max_pool(a: Tensor, spatial: int, lengths: Sequence[Size], taps: Any) -> tuple[Tensor, Tensor]:
    first = a.ndim - spatial
    value, least = a, limits(a.dtype)[0]
    # of its own, so that nothing but maxima is left where positions are not used
    for number in reversed(range(spatial)):
        parts = [widen(part) for part, _ in taps(value, number, first + number, least)]
        value = round_to(functools.reduce(prims.maximum, parts), a.dtype)
    _, positions = maxima(a, range(first, a.ndim), taps)
    at = positions[0]
    for position, length in zip(positions[1:], lengths[1:]):
        at = prims.add(prims.mul(at, length), position)
    return value, at


def _max_pool_with_indices(spatial: int) -> None:
    def forward(
        self: Tensor, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = (0,),
        dilation: Sizes = (1,), ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        lengths = self.shape[self.ndim - spatial :]
        windows = windows_of(lengths, kernel_size, stride, padding, dilation, ceil_mode)
        if windows is None:
            return NotImplemented  # type: ignore[return-value]

        def taps(a: Tensor, number: int, dim: int, fill: Any) -> list[tuple[Tensor, Tensor]]:
            w = windows[number]
            return [(tap, w.positions(k, a.device)) for k, tap in enumerate(w.taps(a, dim, fill))]

        return _max_pool(self, spatial, lengths, taps)

    def backward(grad_output: Tensor, self: Tensor, *window_and_indices: Any) -> Tensor:
        return unpooled(grad_output, window_and_indices[-1], self, spatial)

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

    def rows(a: Tensor) -> Tensor:
        shape = [a.shape[dim] for dim in dims]
        shape[first : first + spatial] = [product(shape[first : first + spatial])]
        return prims.reshape(prims.permute(a, dims=dims), shape=tuple(shape))

    grad, indices = rows(grad), rows(indices)
    places = product(like.shape[like.ndim - spatial :])
    summed = scatter_add(zeros(resized(grad.shape, first, places), grad), first, indices, grad)
    found = prims.reshape(summed, shape=tuple(like.shape[dim] for dim in dims))
    return prims.permute(found, dims=tuple(map(dims.index, range(like.ndim))))


def _adaptive_max(spatial: int) -> None:
    def forward(self: Tensor, output_size: Sizes) -> tuple[Tensor, Tensor]:
        lengths = self.shape[self.ndim - spatial :]
        windows = Adaptive.along(lengths, output_size, self.device)
        if windows is None:
            return NotImplemented

        def taps(a: Tensor, number: int, dim: int, fill: Any) -> list[tuple[Tensor, Tensor]]:
            at = [windows[number].tap(k) for k in range(windows[number].size)]
            return [(prims.index(a, positions, dims=(dim,)), positions) for positions in at]

        return _max_pool(self, spatial, lengths, taps)

    rules.register(f"adaptive_max_pool{spatial}d")(forward)
    rules.register(f"adaptive_max_pool{spatial}d_backward")(
        lambda grad_output, self, indices: unpooled(grad_output, indices, self, spatial)
    )


for _spatial in (2, 3):
    _max_pool_with_indices(_spatial)
    _adaptive_max(_spatial)


@rules.register("fractional_max_pool2d_backward", "fractional_max_pool3d_backward")
def fractional_max_pool_backward(
    grad_output: Tensor, self: Tensor, kernel_size: Sizes, output_size: Sizes, indices: Tensor
) -> Tensor:
    """The gradient at the chosen positions."""
    return unpooled(grad_output, indices, self, len(kernel_size))


@rules.register("max_unpool2d", "max_unpool3d")
def max_unpool(self: Tensor, indices: Tensor, output_size: Sequence[Size], *_: Any) -> Tensor:
    """Values at the positions that pooling took them from, zeros elsewhere. The output size makes
    stride and padding redundant.
    """
    spatial = len(output_size)
    batch = tuple(self.shape[: self.ndim - spatial])
    flat = (*batch, product(self.shape[len(batch) :]))
    target = zeros((*batch, product(output_size)), self)
    at, values = (prims.reshape(x, shape=flat) for x in (indices, self))
    found = prims.scatter(target, at, values, dim=len(batch))
    return prims.reshape(found, shape=(*batch, *output_size))
