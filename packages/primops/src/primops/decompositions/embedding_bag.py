"""Bags of embeddings: sums and means of rows, with gradients. The position of a row gives its bag.
Maxima stay calls.
"""

from __future__ import annotations

from typing import Any

import torch

from primops import prims
from primops.meta import Size
from primops.operand import Tensor, full, round_to, spread, to_dtype, widen
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
    ones = full(starts.shape, 1, torch.int64, starts.device)
    marks = full((length + 1,), 0, torch.int64, starts.device)
    marks = prims.index_put(marks, ones, starts, dims=(0,), accumulate=True)
    return prims.sub(
        prims.cumsum(prims.slice(marks, dim=0, start=0, stop=length, step=1), dim=0), 1
    )


def _of_bags(values: Tensor, offsets: Tensor, length: Size) -> Tensor:
    """For each position the row of ``values`` that belongs to its bag."""
    each = _even(offsets, length)
    if each is None or not same_shape(values.shape[:1], offsets.shape):
        return prims.index(values, _bags(offsets, length), dims=(0,))
    count, width = values.shape
    repeated = prims.broadcast_in_dim(values, shape=(count, each, width), dims=(0, 2))
    return prims.reshape(repeated, shape=(length, width))


def _add_up(rows: Tensor, offsets: Tensor, bags: Tensor) -> Tensor:
    """The sum of each bag's rows (of one or two dims)."""
    length, *rest = rows.shape
    count, each = offsets.shape[0], _even(offsets, length)
    if each is not None:
        return prims.sum(prims.reshape(rows, shape=(count, each, *rest)), dims=(1,))
    return prims.index_put(
        full((count, *rest), 0, rows.dtype, rows.device), rows, bags, dims=(0,), accumulate=True
    )


@rules.register("_embedding_bag", "_embedding_bag_forward_only", auxiliary=(1, 2, 3))
def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False,
    mode: int = SUM, sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    """Rows of weight at indices, added up (or averaged) per bag; rows at padding_idx do not
    count.
    """
    if mode == MAX:
        return NotImplemented
    at, (length,) = to_dtype(indices, torch.int64), indices.shape
    bags, kept = _bags(offsets, length), prims.ne(at, padding_idx)
    count = offsets.shape[0]  # with the end of the last bag, if it is there, as a bag of its own
    rows = widen(prims.index(weight, at, dims=(0,)))
    if per_sample_weights is not None:
        rows = prims.mul(rows, spread(to_dtype(per_sample_weights, rows.dtype), rows.shape, (1,)))
    rows = prims.where(spread(kept, rows.shape, (1,)), rows, 0)
    total, sizes = _add_up(rows, offsets, bags), _add_up(to_dtype(kept, torch.int64), offsets, bags)
    if mode == MEAN:
        total = prims.div(
            total, spread(to_dtype(prims.maximum(sizes, 1), total.dtype), total.shape, (1,))
        )
    if include_last_offset:
        total, sizes = (
            prims.slice(x, dim=0, start=0, stop=count - 1, step=1) for x in (total, sizes)
        )
    if mode == SUM and weight.device.type == "cpu":  # eager's kernel does not count there
        sizes = full(sizes.shape, 0, torch.int64, sizes.device)
    sizes = to_dtype(sizes, indices.dtype)
    return round_to(total, weight.dtype), to_dtype(bags, indices.dtype), sizes, sizes


@rules.register("_embedding_bag_backward")
def embedding_bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: Size, scale_grad_by_freq: bool, mode: int, sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """The gradient of the table: that of each bag at each of its rows."""
    if mode == MAX or scale_grad_by_freq or sparse:
        return NotImplemented
    at, (length,) = to_dtype(indices, torch.int64), indices.shape
    bags, kept = _bags(offsets, length), prims.ne(at, padding_idx)
    wide = widen(grad)
    if mode == MEAN:
        sizes = _add_up(to_dtype(kept, torch.int64), offsets, bags)
        sizes = prims.slice(sizes, dim=0, start=0, stop=grad.shape[0], step=1)
        wide = prims.div(
            wide, spread(to_dtype(prims.maximum(sizes, 1), wide.dtype), wide.shape, (1,))
        )
    rows = _of_bags(wide, offsets, length)
    if per_sample_weights is not None:
        rows = prims.mul(rows, spread(to_dtype(per_sample_weights, rows.dtype), rows.shape, (1,)))
    rows = prims.where(spread(kept, rows.shape, (1,)), rows, 0)
    zeros = full((num_weights, grad.shape[1]), 0, rows.dtype, rows.device)
    return round_to(prims.index_put(zeros, rows, at, dims=(0,), accumulate=True), grad.dtype)


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
