"""Indexing prims. An index outside ``[0, size)`` is an IndexError; negative ones are wrapped by the
decompositions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from primops.errors import PrimError
from primops.meta import Size, TensorMeta, contiguous
from primops.prim import group
from primops.prims.movement import check_sorted_dims
from primops.shapes import may_be_same, same_shape

REDUCTIONS = ("prod", "amax", "amin")
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""For stores that torch does not have for unsigned integers: the same bits."""


def indexed_shape(
    shape: Sequence[Size], indices: Sequence[Size], dims: Sequence[int]
) -> tuple[Size, ...]:
    """Shape of ``index(a, *indices, dims)``: the indices' shape at the first of ``dims`` when
    adjacent, else in front.
    """
    rest = [size for dim, size in enumerate(shape) if dim not in dims]
    adjacent = dims[-1] - dims[0] == len(dims) - 1
    position = dims[0] if adjacent else 0
    return (*rest[:position], *indices, *rest[position:])


def _check_indices(a: TensorMeta, indices: Sequence[TensorMeta], dims: Sequence[int]) -> None:
    check_sorted_dims(dims, a.ndim)
    if not indices or len(indices) != len(dims):
        raise PrimError(f"{len(indices)} indices for dims {tuple(dims)}")
    for index in indices:
        if index.dtype is not torch.int64 or not same_shape(index.shape, indices[0].shape):
            raise PrimError(
                f"indices are {[(i.dtype, i.shape) for i in indices]}; need int64 of one shape"
            )


def _index_rule(a: TensorMeta, *indices: TensorMeta, dims: Sequence[int]) -> TensorMeta:
    _check_indices(a, indices, dims)
    return contiguous(indexed_shape(a.shape, indices[0].shape, dims), a.dtype, a.device)


def _index_put_rule(
    a: TensorMeta, values: TensorMeta, *indices: TensorMeta, dims: Sequence[int], accumulate: bool
) -> TensorMeta:
    _check_indices(a, indices, dims)
    shape = indexed_shape(a.shape, indices[0].shape, dims)
    if values.dtype is not a.dtype or not may_be_same(values.shape, shape):
        raise PrimError(f"values are {values.dtype} {values.shape}, need {a.dtype} {shape}")
    return contiguous(a.shape, a.dtype, a.device)


def _gather_rule(a: TensorMeta, index: TensorMeta, *, dim: int) -> TensorMeta:
    if index.dtype is not torch.int64 or index.ndim != a.ndim or not 0 <= dim < a.ndim:
        raise PrimError(f"index is {index.dtype} {index.shape}, a is {a.shape}, dim is {dim}")
    return contiguous(index.shape, a.dtype, a.device)


def _scatter_rule(
    a: TensorMeta, index: TensorMeta, src: TensorMeta, *, dim: int, reduce: str | None = None
) -> TensorMeta:
    if reduce not in (None, *REDUCTIONS):
        raise PrimError(f"reduce is {reduce!r}; choose one of {REDUCTIONS}")
    _gather_rule(a, index, dim=dim)
    if src.dtype is not a.dtype or not may_be_same(src.shape, index.shape):
        raise PrimError(f"src is {src.dtype} {src.shape}, need {a.dtype} {index.shape}")
    return contiguous(a.shape, a.dtype, a.device)


def _check_range(index: torch.Tensor, size: int) -> None:
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < size):
        raise IndexError(
            f"index out of range [0, {size}): found {int(index.min())} to {int(index.max())}"
        )


def _position(
    a: torch.Tensor, indices: Sequence[torch.Tensor], dims: Sequence[int]
) -> tuple[torch.Tensor | slice, ...]:
    for index, dim in zip(indices, dims):
        _check_range(index, a.shape[dim])
    at = dict(zip(dims, indices))
    return tuple(at.get(dim, slice(None)) for dim in range(a.ndim))


def _index(a: torch.Tensor, *indices: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return a[_position(a, indices, dims)].contiguous()


def _index_put(
    a: torch.Tensor,
    values: torch.Tensor,
    *indices: torch.Tensor,
    dims: Sequence[int],
    accumulate: bool,
) -> torch.Tensor:
    position = _position(a, indices, dims)
    result = a.clone(memory_format=torch.contiguous_format)
    if accumulate:
        # Written out by linear position so that repeated indices add in order.
        where = torch.arange(a.numel(), device=a.device).reshape(a.shape)[position]
        return result.view(-1).index_add_(0, where.reshape(-1), values.reshape(-1)).reshape(a.shape)
    bits = SIGNED.get(a.dtype, a.dtype)
    result.view(bits)[position] = values.view(bits)
    return result


def _along(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function of torch that takes the index of one dim, with a check of the index."""

    def reference(
        a: torch.Tensor, index: torch.Tensor, *src: torch.Tensor, dim: int, **options: str
    ) -> torch.Tensor:
        _check_range(index, a.shape[dim])
        return function(a.contiguous(), dim, index, *src, **options)

    return reference


_indexing = group("indexing", "indexing", dtype_rule="that of a")
_scattering = group("indexing", "indexing", "scatter", dtype_rule="that of a")
index = _indexing(
    "index(a, *indices, dims)", _index_rule, _index,
    "a at indices[k] along dims[k]; result dims: the indices' at the first of dims when adjacent, "
    "else first; then the others",
)  # fmt: skip
index_put = _scattering(
    "index_put(a, values, *indices, dims, accumulate)", _index_put_rule, _index_put,
    "a copy of a with index(a, *indices, dims) replaced by values, or with values added; the last "
    "of equal indices wins",
)  # fmt: skip
gather = _indexing(
    "gather(a, index, *, dim)", _gather_rule, _along(torch.gather),
    "a at [..., index[..., i, ...], ...] along dim; index is not larger than a elsewhere",
)  # fmt: skip
scatter = _scattering(
    "scatter(a, index, src, *, dim)", _scatter_rule, _along(torch.scatter),
    "a copy of a with src stored where gather would read",
)  # fmt: skip
scatter_add = _scattering(
    "scatter_add(a, index, src, *, dim)", _scatter_rule, _along(torch.scatter_add),
    "a copy of a with src added where gather would read",
)  # fmt: skip
scatter_reduce = _scattering(
    "scatter_reduce(a, index, src, *, dim, reduce)", _scatter_rule, _along(torch.scatter_reduce),
    "a copy of a, combined with src by reduce (prod, amax or amin; NaN wins) where gather would "
    "read",
)  # fmt: skip
