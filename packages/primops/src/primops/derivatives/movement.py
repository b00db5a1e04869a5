"""Derivatives of shape prims: the transposed movement. Half dtypes are added up in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from primops import prims
from primops.derivatives.table import derive, register_vjp
from primops.meta import Size
from primops.operand import (
    Tensor,
    along,
    iota,
    pad_dim,
    round_to,
    slice_dim,
    unsqueeze,
    widen,
    zeros,
)
from primops.shapes import is_one, resized


@register_vjp(prims.broadcast_in_dim, "a")
def _broadcast_in_dim(
    g: Tensor, y: Tensor, a: Tensor, *, shape: Sequence[Size], dims: Sequence[int]
) -> Tensor:
    """g summed over what was repeated"""
    kept = {dim for size, dim in zip(a.shape, dims) if not is_one(size)}
    repeated = tuple(dim for dim in range(len(shape)) if dim not in kept)
    total = prims.sum(widen(g), dims=repeated)
    return round_to(prims.reshape(total, shape=tuple(a.shape)), g.dtype)


derive(
    prims.reshape, "a", "g in the old shape",
    lambda g, y, a, *, shape: prims.reshape(g, shape=tuple(a.shape)),
)  # fmt: skip
derive(
    prims.permute, "a", "g permuted back",
    lambda g, y, a, *, dims: prims.permute(
        g, dims=tuple(sorted(range(len(dims)), key=dims.__getitem__))
    ),
)  # fmt: skip
derive(prims.flip, "a", "g flipped", lambda g, y, a, *, dims: prims.flip(g, dims=dims))


@register_vjp(prims.slice, "a")
def _slice(
    g: Tensor, y: Tensor, a: Tensor, *, dim: int, start: Size, stop: Size, step: int
) -> Tensor:
    """g with zeros where nothing was taken"""
    if step == 1:
        return pad_dim(g, dim, start, a.shape[dim] - stop)
    spaced = pad_dim(unsqueeze(g, dim + 1), dim + 1, 0, step - 1)
    length = g.shape[dim] * step
    whole = prims.reshape(spaced, shape=resized(g.shape, dim, length))
    return pad_dim(whole, dim, start, a.shape[dim] - start - length)


@register_vjp(prims.pad, "a")
def _pad(
    g: Tensor, y: Tensor, a: Tensor, *, low: Sequence[Size], high: Sequence[Size], value: object
) -> Tensor:
    """g without the padding, with zeros where elements were removed"""
    return prims.pad(g, low=tuple(-n for n in low), high=tuple(-n for n in high), value=0)


@register_vjp(prims.cat, "*")
def _cat(g: Tensor, y: Tensor, *tensors: Tensor, dim: int, position: int) -> Tensor:
    """g at the operand's place"""
    start: Size = 0
    for tensor in tensors[:position]:
        start = start + tensor.shape[dim]
    return slice_dim(g, dim, start, start + tensors[position].shape[dim])


@register_vjp(prims.window, "a")
def _window(g: Tensor, y: Tensor, a: Tensor, *, dim: int, size: int, step: int) -> Tensor:
    """g added up where windows overlap"""
    count = g.shape[dim]
    taps = along(iota(size, torch.int64, g.device), (count, size), 1)
    starts = along(iota(count, torch.int64, g.device, 0, step), (count, size), 0)
    order = (*range(dim + 1), g.ndim - 1, *range(dim + 1, g.ndim - 1))
    added = prims.index_put(
        widen(zeros(a.shape, g)), prims.permute(widen(g), dims=order), prims.add(starts, taps),
        dims=(dim,), accumulate=True,
    )  # fmt: skip
    return round_to(added, g.dtype)
