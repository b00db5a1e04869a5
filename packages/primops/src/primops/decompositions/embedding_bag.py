"""Bags of embeddings: sums and means of rows, with gradients. The position of a row gives its bag.
Maxima stay calls.
"""

from __future__ import annotations

from typing import Any

import torch

from primops import prims
from primops.meta import Size
from primops.operand import (
    Tensor,
    add_at,
    along,
    full_like,
    round_to,
    slice_dim,
    spread,
    to_dtype,
    widen,
    zeros,
)
from primops.registry import DecompositionTable
from primops.shapes import same_shape

rules = DecompositionTable()
SUM, MEAN, MAX = range(3)


def _even(offsets: Tensor, length: Size) -> Size | None:
    """The length of every bag when the offsets show that all are equal (0, n, 2 n, ...), as those
    of a matrix of indices do.
    """
    if getattr(offsets, "target", None) is not prims.iota or offsets.params["start"] != 0:
        return None
    step = offsets.params["step"]
    return step if same_shape((offsets.shape[0] * step,), (length,)) else None


def _bags(offsets: Tensor, length: Size) -> Tensor:
    """The bag of each position: how many bags start at or before it, less one."""
    starts = to_dtype(offsets, torch.int64)
    ones = full_like(starts, 1)
    marks = add_at(zeros((length + 1,), ones), 0, starts, ones)
    return prims.sub(prims.cumsum(slice_dim(marks, 0, 0, length), dim=0), 1)


def _of_bags(values: Tensor, offsets: Tensor, length: Size) -> Tensor:
    """For each position the row of ``values`` that belongs to its bag."""
    each = _even(offsets, length)
    if each is None or not same_shape(values.shape[:1], offsets.shape):
        return prims.index(values, _bags(offsets, length), dims=(0,))
    count, width = values.shape
    repeated = spread(values, (count, each, width), (1,))
    return prims.reshape(repeated, shape=(length, width))


def _add_up(rows: Tensor, offsets: Tensor, bags: Tensor) -> Tensor:
    """The sum of each bag's rows (of one or two dims)."""
    length, *rest = rows.shape
    count, each = offsets.shape[0], _even(offsets, length)
    if each is not None:
        return prims.sum(prims.reshape(rows, shape=(count, each, *rest)), dims=(1,))
    return add_at(zeros((count, *rest), rows), 0, bags, rows)


def _averaged(sums: Tensor, sizes: Tensor) -> Tensor:
    """Rows over the number of elements in their bags."""
    sizes = to_dtype(prims.maximum(sizes, 1), sums.dtype)
    return prims.div(sums, along(sizes, sums.shape, 0))


def _counted(rows: Tensor, weights: Tensor | None, kept: Tensor) -> Tensor:
    """Rows times their weights; 0 for those that do not count."""
    if weights is not None:
        rows = prims.mul(rows, along(to_dtype(weights, rows.dtype), rows.shape, 0))
    return prims.where(along(kept, rows.shape, 0), rows, 0)


@rules.register("_embedding_bag", "_embedding_bag_forward_only", auxiliary=(1, 2, 3))
def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False,
    mode: int = SUM, sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int = -1,
) -> Any:  # fmt: skip
    """Rows of weight at indices, added up (or averaged) per bag; rows at padding_idx do not
    count.
    """
    if mode == MAX:
        return NotImplemented
    at, (length,) = to_dtype(indices, torch.int64), indices.shape
    bags, kept = _bags(offsets, length), prims.ne(at, padding_idx)
    count = offsets.shape[0]  # with the end of the last bag, if it is there, as a bag of its own
    rows = _counted(widen(prims.index(weight, at, dims=(0,))), per_sample_weights, kept)
    total, sizes = _add_up(rows, offsets, bags), _add_up(to_dtype(kept, torch.int64), offsets, bags)
    if mode == MEAN:
        total = _averaged(total, sizes)
    if include_last_offset:
        total, sizes = (slice_dim(x, 0, 0, count - 1) for x in (total, sizes))
    if mode == SUM and weight.device.type == "cpu":  # eager's kernel does not count there
        sizes = full_like(sizes, 0)
    sizes = to_dtype(sizes, indices.dtype)
    return round_to(total, weight.dtype), to_dtype(bags, indices.dtype), sizes, sizes


@rules.register("_embedding_bag_backward")
def embedding_bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, bag_size: Tensor,
    maximum_indices: Tensor, num_weights: Size, scale_grad_by_freq: bool, mode: int, sparse: bool,
    per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """The gradient of the table: that of each bag at each of its rows."""
    if mode == MAX or scale_grad_by_freq or sparse:
        return NotImplemented
    at, (length,) = to_dtype(indices, torch.int64), indices.shape
    bags, kept = _bags(offsets, length), prims.ne(at, padding_idx)
    wide = widen(grad)
    if mode == MEAN:
        sizes = _add_up(to_dtype(kept, torch.int64), offsets, bags)
        wide = _averaged(wide, slice_dim(sizes, 0, 0, grad.shape[0]))
    rows = _counted(_of_bags(wide, offsets, length), per_sample_weights, kept)
    return round_to(add_at(zeros((num_weights, grad.shape[1]), rows), 0, at, rows), grad.dtype)


@rules.register("_embedding_bag_per_sample_weights_backward")
def per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient of each weight: its row times the gradient of its bag."""
    at = to_dtype(indices, torch.int64)
    rows = _of_bags(widen(grad), offsets, indices.shape[0])
    products = prims.sum(prims.mul(rows, widen(prims.index(weight, at, dims=(0,)))), dims=(1,))
    return round_to(prims.where(prims.ne(at, padding_idx), products, 0), grad.dtype)
