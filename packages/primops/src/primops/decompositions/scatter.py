"""Scatters with a reduction, writes to parts of a tensor, and what is built of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from primops import prims
from primops.decompositions.indexing import cut_to, index_put, vector, wrapped
from primops.decompositions.reduction import p_norm
from primops.decompositions.view import diagonal
from primops.meta import Size
from primops.operand import (
    Scalar,
    Tensor,
    along,
    broadcast,
    broadcast_to,
    flat,
    full,
    full_like,
    iota,
    pad_dim,
    round_to,
    slice_dim,
    spread,
    to_dtype,
    widen,
    zeros,
)
from primops.promotion import COMPUTE_FLOATS, is_integral, is_number, limits
from primops.registry import DecompositionTable
from primops.shapes import wrap_dim

rules = DecompositionTable()
NAMES = {"add": "sum", "multiply": "prod"}


def _identity(reduce: str, dtype: torch.dtype) -> Any:
    if reduce in ("amax", "amin"):
        return limits(dtype)[reduce == "amin"]
    return 1 if reduce == "prod" else 0


@rules.register("scatter_reduce.two", "scatter.reduce")
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """``src`` combined with ``self`` (or only among itself) where ``gather`` would read."""
    if self.ndim == 0 or index.ndim != self.ndim or self.dtype is torch.bool:
        return NotImplemented
    reduce = NAMES.get(reduce, reduce)
    dim = wrap_dim(dim, self.ndim)
    index = to_dtype(index, torch.int64)
    wide, values = widen(self), widen(cut_to(src, index.shape))
    start = wide
    if not include_self:
        identity = full(index.shape, _identity(reduce, wide.dtype), wide.dtype, wide.device)
        start = prims.scatter(wide, index, identity, dim=dim)
    if reduce not in ("sum", "mean"):
        result = prims.scatter_reduce(start, index, values, dim=dim, reduce=reduce)
        return round_to(result, self.dtype)
    result = prims.scatter_add(start, index, values, dim=dim)
    if reduce == "mean":
        ones = full(index.shape, 1, torch.int64, self.device)
        count = full_like(self, int(include_self), torch.int64)
        count = prims.scatter_add(count, index, ones, dim=dim)
        count = to_dtype(prims.maximum(count, 1), wide.dtype)
        result = (prims.floor_div if is_integral(wide.dtype) else prims.div)(result, count)
    return round_to(result, self.dtype)


@rules.register("scatter.value_reduce")
def scatter_value_with(
    self: Tensor, dim: int, index: Tensor, value: Scalar, *, reduce: str
) -> Tensor:
    """A number combined with elements."""
    source = full(index.shape, value, self.dtype, self.device)
    return scatter_reduce(self, dim, index, source, reduce)


@rules.register("index_reduce")
def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """``source`` combined with positions of one dim."""
    if self.ndim == 0:
        return NotImplemented
    dim = wrap_dim(dim, self.ndim)
    at = along(vector(index), source.shape, dim)
    return scatter_reduce(self, dim, at, source, reduce, include_self=include_self)


@rules.register("put")
def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Elements stored by position in row-major order."""
    found = index_put(flat(self), [flat(index)], flat(source), accumulate)
    return found if found is NotImplemented else prims.reshape(found, shape=self.shape)


@rules.register("_unsafe_masked_index")
def unsafe_masked_index(
    self: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: Scalar
) -> Tensor:
    """Elements at indices where the mask is true (only there in range), else a number."""
    safe = _clamped(self, indices)
    dims = tuple(d for d, i in enumerate(safe) if i is not None)
    picked = prims.index(self, *broadcast(*[i for i in safe if i is not None]), dims=dims)
    return prims.where(broadcast_to(mask, picked.shape), picked, fill)


def _clamped(a: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    def inside(index: Tensor, size: Size) -> Tensor:
        return prims.maximum(prims.minimum(wrapped(index, size), size - 1), 0)

    return [None if i is None else inside(i, a.shape[d]) for d, i in enumerate(indices)]


@rules.register("_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put(
    self: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor
) -> Tensor:
    """Values added where the mask is true."""
    masked = prims.where(broadcast_to(mask, values.shape), values, 0)
    return index_put(self, _clamped(self, indices), masked, True)


@rules.register("diagonal_scatter")
def diagonal_scatter(
    self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """``self`` with a diagonal replaced."""
    whole = prims.reshape(iota(self.numel(), torch.int64, self.device), shape=tuple(self.shape))
    shaped = diagonal(whole, offset, dim1, dim2)
    at = flat(shaped)
    values = prims.reshape(broadcast_to(to_dtype(src, self.dtype), shaped.shape), shape=at.shape)
    written = prims.index_put(flat(self), values, at, dims=(0,), accumulate=False)
    return prims.reshape(written, shape=self.shape)


@rules.register("diagonal_backward")
def diagonal_backward(
    grad_output: Tensor, input_sizes: Sequence[Size], offset: int, dim1: int, dim2: int
) -> Tensor:
    """The gradient on a diagonal of zeros."""
    return diagonal_scatter(zeros(input_sizes, grad_output), grad_output, offset, dim1, dim2)


@rules.register("block_diag")
def block_diag(tensors: Sequence[Tensor]) -> Tensor:
    """Matrices along a diagonal."""
    dtype = functools.reduce(torch.promote_types, [t.dtype for t in tensors])
    blocks = [
        prims.reshape(to_dtype(t, dtype), shape=(1,) * (2 - t.ndim) + tuple(t.shape))
        for t in tensors
    ]
    columns = sum(block.shape[1] for block in blocks)
    before: Size = 0
    rows = []
    for block in blocks:
        rows.append(pad_dim(block, 1, before, columns - before - block.shape[1]))
        before = before + block.shape[1]
    return prims.cat(*rows, dim=0)


@rules.register("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each element is among others."""
    device = next(x.device for x in (elements, test_elements) if not is_number(x))
    elements, tests = (
        full((), x, torch.int64 if isinstance(x, int) else torch.float32, device)
        if is_number(x)
        else x
        for x in (elements, test_elements)
    )
    dtype = torch.promote_types(elements.dtype, tests.dtype)
    others = flat(to_dtype(tests, dtype))
    shape = (*elements.shape, others.shape[0])
    left = spread(widen(to_dtype(elements, dtype)), shape, (elements.ndim,))
    right = along(widen(others), shape, elements.ndim)
    found = prims.any(prims.eq(left, right), dims=(elements.ndim,))
    return prims.bitwise_not(found) if invert else found


@rules.register("embedding_renorm")
def embedding_renorm(self: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """The weights; each row that ``indices`` names is scaled down to a norm of ``max_norm``."""
    at = flat(to_dtype(indices, torch.int64))
    hit = full((self.shape[0],), False, torch.bool, self.device)
    true = full_like(at, True, torch.bool)
    hit = prims.index_put(hit, true, at, dims=(0,), accumulate=False)
    return prims.where(along(hit, self.shape, 0), renorm(self, norm_type, 0, max_norm), self)


@rules.register("renorm")
def renorm(self: Tensor, p: Scalar, dim: int, maxnorm: Scalar) -> Tensor:
    """Slices along dim scaled down to a norm of at most ``maxnorm``."""
    dim = wrap_dim(dim, self.ndim)
    wide = widen(self)
    others = [d for d in range(self.ndim) if d != dim]
    size = p_norm(wide, p, others, False)
    factor = prims.where(prims.gt(size, maxnorm), prims.div(maxnorm, prims.add(size, 1e-7)), 1.0)
    return round_to(prims.mul(wide, along(factor, wide.shape, dim)), self.dtype)


@rules.register("histc")
def histc(self: Tensor, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Tensor:
    """How many elements lie in each of ``bins`` equal parts of [min, max]. Stays a call if the
    range comes from the data.
    """
    whole = is_integral(self.dtype)
    are_known = all(isinstance(x, (int, float)) for x in (min, max))
    if not (whole or self.dtype in COMPUTE_FLOATS) or not are_known or min >= max:
        return NotImplemented
    low, high = (torch.tensor(limit).to(self.dtype) for limit in (min, max))
    elements = flat(self)
    inside = prims.bitwise_and(prims.ge(elements, low.item()), prims.le(elements, high.item()))
    shifted = prims.sub(prims.where(inside, elements, low.item()), low.item())
    part = (prims.floor_div if whole else prims.div)(prims.mul(shifted, bins), (high - low).item())
    bin_of = prims.where(inside, prims.minimum(to_dtype(part, torch.int64), bins - 1), bins)
    counts = prims.scatter_add(zeros((bins + 1,), self), bin_of, full_like(elements, 1), dim=0)
    return slice_dim(counts, 0, 0, bins)
