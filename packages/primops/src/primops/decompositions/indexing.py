"""Indexing, gathering and scattering; embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from primops import prims
from primops.derivatives import gradient_of
from primops.meta import Size
from primops.operand import (
    Scalar,
    Tensor,
    add_at,
    along,
    broadcast,
    broadcast_to,
    flat,
    full,
    iota,
    round_to,
    to_dtype,
    unsqueeze,
    widen,
    zeros,
)
from primops.prims.indexing import indexed_shape
from primops.promotion import is_integral, is_number
from primops.registry import DecompositionTable
from primops.shapes import product, wrap_dim

rules = DecompositionTable()


def wrapped(index: Tensor, size: Size) -> Tensor:
    """Negative indices counted from the end."""
    index = to_dtype(index, torch.int64)
    return prims.where(prims.lt(index, 0), prims.add(index, size), index)


def _positions(
    a: Tensor, indices: Sequence[Tensor | None]
) -> tuple[list[Tensor], tuple[int, ...]] | None:
    """int64 indices of one shape and their dims, or None for masks, whose number of hits is not
    known.
    """
    dims = tuple(dim for dim, index in enumerate(indices) if index is not None)
    given = [index for index in indices if index is not None]
    if not given or any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return None
    return broadcast(*[wrapped(index, a.shape[dim]) for index, dim in zip(given, dims)]), dims


@rules.register("index.Tensor", "_unsafe_index.Tensor")
def index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """``self[indices]`` for integer tensors."""
    found = _positions(self, indices)
    return NotImplemented if found is None else prims.index(self, *found[0], dims=found[1])


@rules.register("index_put", "_unsafe_index_put")
def index_put(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """A copy of self with ``self[indices]`` replaced, or added to."""
    is_masked = all(i is None or (i.dtype is torch.bool and i.ndim == self.ndim) for i in indices)
    if is_masked and not accumulate and values.ndim == 0:
        mask = next(i for i in indices if i is not None)
        return prims.where(mask, broadcast_to(to_dtype(values, self.dtype), self.shape), self)
    found = _positions(self, indices)
    if found is None or (accumulate and self.dtype is torch.bool):
        return NotImplemented
    positions, dims = found
    shape = indexed_shape(self.shape, positions[0].shape, dims)
    if values.ndim > len(shape):  # leading dims of size 1
        values = prims.reshape(values, shape=values.shape[values.ndim - len(shape) :])
    values = broadcast_to(to_dtype(values, self.dtype), shape)
    if not accumulate:
        return prims.index_put(self, values, *positions, dims=dims, accumulate=False)
    total = prims.index_put(widen(self), widen(values), *positions, dims=dims, accumulate=True)
    return round_to(total, self.dtype)


def vector(index: Tensor) -> Tensor:
    """int64 positions, a single one as a vector."""
    index = to_dtype(index, torch.int64)
    return unsqueeze(index, 0) if index.ndim == 0 else index


@rules.register("index_select")
def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    """Positions of one dim."""
    if self.ndim == 0:
        return NotImplemented
    return prims.index(self, vector(index), dims=(wrap_dim(dim, self.ndim),))


@rules.register("index_select_backward")
def index_select_backward(
    grad: Tensor, self_sizes: Sequence[Size], dim: int, index: Tensor
) -> Tensor:
    """The gradient added up in a tensor of zeros."""
    if not self_sizes:
        return NotImplemented
    self, dims = zeros(self_sizes, grad), (wrap_dim(dim, len(self_sizes)),)
    return gradient_of(prims.index, 0, grad, None, self, vector(index), dims=dims)


@rules.register("index_add")
def index_add(
    self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Scalar = 1
) -> Tensor:
    """``source`` times alpha added at positions of one dim."""
    if self.ndim == 0 or self.dtype is torch.bool:
        return NotImplemented
    dim = wrap_dim(dim, self.ndim)
    wide = widen(to_dtype(source, self.dtype))
    wide = wide if is_number(alpha) and alpha == 1 else prims.mul(wide, alpha)
    return round_to(add_at(widen(self), dim, vector(index), wide), self.dtype)


@rules.register("index_copy")
def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """``source`` stored at positions of one dim."""
    if self.ndim == 0 or source.ndim != self.ndim:
        return NotImplemented
    dims = (wrap_dim(dim, self.ndim),)
    return prims.index_put(self, source, vector(index), dims=dims, accumulate=False)


@rules.register("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """A number, or the element of a tensor, stored at positions of one dim."""
    if self.ndim == 0:
        return NotImplemented
    dim = wrap_dim(dim, self.ndim)
    at = wrapped(vector(index), self.shape[dim])
    shape = indexed_shape(self.shape, at.shape, (dim,))
    if is_number(value):
        values = full(shape, value, self.dtype, self.device)
    else:
        values = broadcast_to(to_dtype(value, self.dtype), shape)
    return prims.index_put(self, values, at, dims=(dim,), accumulate=False)


@rules.register("gather")
def gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Elements picked along one dim."""
    if self.ndim == 0 or index.ndim != self.ndim:
        return NotImplemented
    return prims.gather(self, to_dtype(index, torch.int64), dim=wrap_dim(dim, self.ndim))


def cut_to(src: Tensor, shape: Sequence[Size]) -> Tensor:
    """The first elements along every dim."""
    for dim, size in enumerate(shape):
        src = prims.slice(src, dim=dim, start=0, stop=size, step=1)
    return src


@rules.register("scatter.src")
def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """``src`` stored where ``gather`` would read."""
    if self.ndim == 0 or index.ndim != self.ndim:
        return NotImplemented
    dim, index = wrap_dim(dim, self.ndim), to_dtype(index, torch.int64)
    return prims.scatter(self, index, cut_to(src, index.shape), dim=dim)


@rules.register("scatter.value")
def scatter_value(self: Tensor, dim: int, index: Tensor, value: Scalar) -> Tensor:
    """A number stored where ``gather`` would read."""
    return scatter(self, dim, index, full(index.shape, value, self.dtype, self.device))


@rules.register("scatter_add")
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """``src`` added where ``gather`` would read."""
    if self.ndim == 0 or index.ndim != self.ndim or self.dtype is torch.bool:
        return NotImplemented
    dim, values = wrap_dim(dim, self.ndim), widen(cut_to(src, index.shape))
    added = prims.scatter_add(widen(self), to_dtype(index, torch.int64), values, dim=dim)
    return round_to(added, self.dtype)


@rules.register("gather_backward")
def gather_backward(
    grad: Tensor, self: Tensor, dim: int, index: Tensor, sparse_grad: bool
) -> Tensor:
    """The gradient added up in a tensor of zeros."""
    if sparse_grad or self.ndim == 0 or index.ndim != self.ndim:
        return NotImplemented
    index, dim = to_dtype(index, torch.int64), wrap_dim(dim, self.ndim)
    return gradient_of(prims.gather, 0, grad, None, self, index, dim=dim)


@rules.register("value_selecting_reduction_backward")
def value_selecting_reduction_backward(
    grad: Tensor, dim: int, indices: Tensor, sizes: Sequence[Size], keepdim: bool
) -> Tensor:
    """The gradient of ``max`` or ``min`` along a dim, at the chosen positions of a tensor of
    zeros.
    """
    if not sizes:
        return grad
    dim = wrap_dim(dim, len(sizes))
    if not keepdim:
        grad, indices = unsqueeze(grad, dim), unsqueeze(indices, dim)
    return prims.scatter(zeros(sizes, grad), indices, grad, dim=dim)


@rules.register("take")
def take(self: Tensor, index: Tensor) -> Tensor:
    """Elements by position in row-major order."""
    return prims.index(flat(self), wrapped(index, self.numel()), dims=(0,))


# Embeddings
# --------------------------------------------------------------------------------------------------


@rules.register("embedding")
def embedding(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    """Rows of ``weight``. The other arguments only concern the derivative."""
    return prims.index(weight, to_dtype(indices, torch.int64), dims=(0,))


@rules.register("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Tensor,
    indices: Tensor,
    num_weights: Size,
    padding_idx: Size,
    scale_grad_by_freq: bool,
) -> Tensor:
    """The gradients of equal rows added up; none for ``padding_idx``."""
    indices = to_dtype(indices, torch.int64)
    grad = widen(grad_output)
    rows = product(indices.shape)
    shape = (rows, grad.shape[-1])
    values, at = prims.reshape(grad, shape=shape), prims.reshape(indices, shape=(rows,))
    if scale_grad_by_freq:
        ones = full((rows,), 1, torch.int64, grad.device)
        counts = add_at(zeros((num_weights,), ones), 0, at, ones)
        frequency = to_dtype(prims.index(counts, at, dims=(0,)), grad.dtype)
        values = prims.div(values, along(frequency, shape, 0))
    if not (isinstance(padding_idx, int) and padding_idx < 0):
        values = prims.where(along(prims.eq(at, padding_idx), shape, 0), 0, values)
    target = zeros((num_weights, shape[1]), grad)
    return round_to(add_at(target, 0, at, values), grad_output.dtype)


@rules.register("one_hot")
def one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    """1 at the class given, 0 elsewhere."""
    if num_classes < 1 or not is_integral(self.dtype):
        return NotImplemented  # eager's count of the classes, or its error
    shape = (*self.shape, num_classes)
    classes = iota(num_classes, torch.int64, self.device)
    # the classes themselves, checked
    known = prims.index(classes, to_dtype(self, torch.int64), dims=(0,))
    wide = prims.broadcast_in_dim(known, shape=shape, dims=tuple(range(self.ndim)))
    hit = prims.eq(wide, along(classes, shape, self.ndim))
    return to_dtype(hit, torch.int64)
