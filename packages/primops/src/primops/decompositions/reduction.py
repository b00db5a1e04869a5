"""Sums, extremes, moments, norms and scans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from primops import prims
from primops.meta import Size
from primops.operand import (
    Scalar,
    Tensor,
    along,
    flat,
    full_like,
    iota,
    kept,
    reduce,
    round_to,
    spread,
    to_bool,
    to_dtype,
    widen,
    widen_exact,
)
from primops.promotion import compute_dtype, is_integral, sum_dtype, to_float_dtype
from primops.registry import DecompositionTable, Rule
from primops.shapes import is_empty, is_zero, larger, product, wrap_dim, wrap_dims

rules = DecompositionTable()
Dims = int | Sequence[int] | None
Dtype = torch.dtype | None
INF, NAN = float("inf"), float("nan")


def count(a: Tensor, dims: Sequence[int]) -> Size:
    """Scalar of elements per result of a reduction."""
    return product(a.shape[dim] for dim in dims)


def _accumulation(names: str, prim: Any, of_bools: Any) -> Rule:
    """Integers accumulate in int64, half dtypes in float32."""

    @rules.register(*names.split())
    def rule(self: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Dtype = None) -> Any:
        result = dtype or sum_dtype(self.dtype)
        if result is torch.bool:
            return reduce(of_bools, to_bool(self), dim, keepdim)
        wide = to_dtype(self, compute_dtype(result))
        return round_to(reduce(prim, wide, dim, keepdim), result)

    return rule


sum = _accumulation("sum sum.dim_IntList", prims.sum, prims.any)
_accumulation("prod prod.dim_int", prims.prod, prims.all)


@rules.register("nansum")
def nansum(self: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Dtype = None) -> Tensor:
    """Sum with NaN as 0."""
    if is_integral(self.dtype):
        return sum(self, dim, keepdim, dtype=dtype)
    wide = widen(self)
    cleaned = prims.where(prims.ne(wide, wide), 0, wide)
    return sum(cleaned, dim, keepdim, dtype=dtype or self.dtype)


@rules.register("mean", "mean.dim")
def mean(self: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Dtype = None) -> Tensor:
    """Sum divided by the number of elements."""
    result = dtype or self.dtype
    wide = to_dtype(self, compute_dtype(result))
    dims = wrap_dims(dim, self.ndim)
    return round_to(prims.div(reduce(prims.sum, wide, dim, keepdim), count(self, dims)), result)


def _truth(name: str, prim: Any) -> None:
    @rules.register(name, f"{name}.dim", f"{name}.dims")
    def rule(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
        none = isinstance(dim, (list, tuple)) and not dim  # here an empty list means no dims
        result = to_bool(self) if none else reduce(prim, to_bool(self), dim, keepdim)
        return to_dtype(result, torch.uint8) if self.dtype is torch.uint8 else result


_truth("any", prims.any)
_truth("all", prims.all)


@rules.register("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(self: Tensor, dim: Dims = None) -> Tensor:
    """Scalar of elements that are not 0."""
    return reduce(prims.sum, to_dtype(to_bool(self), torch.int64), dim, False)


def _positions(prim: Any, self: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    values = to_dtype(self, torch.uint8) if self.dtype is torch.bool else widen_exact(self)
    if self.ndim == 0 and dim is not None:
        return full_like(self, 0, torch.int64)
    dims = wrap_dims(dim, self.ndim)
    position = prim(flat(values), dim=0) if dim is None else prim(values, dim=dims[0])
    return kept(position, dims) if keepdim else position


def _extreme(name: str, prim: Any, position: Any) -> Rule:
    """``max`` or ``min``: over dims, of all elements, its first position, both. NaN wins."""

    @rules.register(f"a{name}")
    def over(self: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
        return round_to(reduce(prim, widen(self), dim, keepdim), self.dtype)

    @rules.register(f"arg{name}")
    def place(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        return _positions(position, self, dim, keepdim)

    @rules.register(f"{name}.dim")
    def both(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return over(self, dim, keepdim), place(self, dim, keepdim)

    @rules.register(name)
    def of_all(self: Tensor) -> Tensor:
        return NotImplemented if is_empty(self.shape) else over(self, None)  # eager's error

    return over


amax, amin = _extreme("max", prims.amax, prims.argmax), _extreme("min", prims.amin, prims.argmin)


@rules.register("aminmax")
def aminmax(
    self: Tensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Both extremes."""
    return amin(self, dim, keepdim), amax(self, dim, keepdim)


# Moments
# --------------------------------------------------------------------------------------------------


def moments(wide: Tensor, dims: Sequence[int], correction: Scalar) -> tuple[Tensor, Tensor]:
    """Variance and mean over ``dims`` (removed) of a float32 or float64 tensor, from the
    deviations.
    """
    total, average = _squares(wide, dims)
    return _variance(total, count(wide, dims), correction), average


def _squares(wide: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The sum of squared deviations, and the mean."""
    average = prims.div(prims.sum(wide, dims=tuple(dims)), count(wide, dims))
    deviation = prims.sub(wide, spread(average, wide.shape, dims))
    return prims.sum(prims.mul(deviation, deviation), dims=tuple(dims)), average


def _variance(total: Tensor, size: Size, correction: Scalar) -> Tensor:
    # An integer, where possible: a symbolic size minus a float would be a symbolic float.
    is_whole = isinstance(correction, float) and correction.is_integer()
    whole: Scalar = int(correction) if is_whole else correction
    return prims.div(total, larger(size - whole, 0))


def _deviation(name: str, function: Any) -> None:
    """``function`` of the squared deviations' sum over ``n - correction``; alone, and with the
    mean.
    """

    def statistics(
        self: Tensor, dim: Dims, *, correction: Scalar | None = None, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]:
        dims = wrap_dims(dim, self.ndim)
        total, average = _squares(widen(self), dims)
        variance = _variance(total, count(self, dims), 1 if correction is None else correction)
        # Eager updates the mean by deviations from it: one that is infinite leaves no number.
        average = prims.where(prims.ne(total, total), NAN, average)
        return (kept(variance, dims), kept(average, dims)) if keepdim else (variance, average)

    @rules.register(f"{name}.correction")
    def alone(self: Tensor, dim: Dims = None, **options: Any) -> Tensor:
        return round_to(function(statistics(self, dim, **options)[0]), self.dtype)

    @rules.register(f"{name}_mean.correction")
    def both(self: Tensor, dim: Dims = None, **options: Any) -> tuple[Tensor, Tensor]:
        variance, average = statistics(self, dim, **options)
        return round_to(function(variance), self.dtype), round_to(average, self.dtype)


_deviation("var", lambda variance: variance)
_deviation("std", prims.sqrt)


# Norms
# --------------------------------------------------------------------------------------------------


def p_norm(wide: Tensor, p: Scalar, dim: Dims, keepdim: bool) -> Tensor:
    """``sum(|x| ** p) ** (1 / p)`` with the limits for 0 and the infinities."""
    size = prims.abs(wide)
    if p == 2:
        return prims.sqrt(reduce(prims.sum, prims.mul(wide, wide), dim, keepdim))
    if p == 1:
        return reduce(prims.sum, size, dim, keepdim)
    if p == 0:
        return reduce(prims.sum, to_dtype(prims.ne(wide, 0), wide.dtype), dim, keepdim)
    if p in (INF, -INF):
        return reduce(prims.amax if p > 0 else prims.amin, size, dim, keepdim)
    return prims.pow(reduce(prims.sum, prims.pow(size, p), dim, keepdim), 1.0 / p)


@rules.register("linalg_vector_norm")
def linalg_vector_norm(
    self: Tensor, ord: Scalar = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Dtype = None
) -> Tensor:
    """p-norm over dims."""
    result = dtype or self.dtype
    return round_to(p_norm(to_dtype(self, compute_dtype(result)), ord, dim, keepdim), result)


@rules.register(
    "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype"
)
def norm(self: Tensor, p: Scalar | None = 2, *over: Any, dtype: Dtype = None) -> Tensor:
    """p-norm over dims."""
    return linalg_vector_norm(self, 2 if p is None else p, *over, dtype=dtype)


@rules.register("logsumexp")
def logsumexp(self: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """``log(sum(exp(x)))``, from the maximum."""
    result = to_float_dtype(self.dtype)
    wide = to_dtype(self, compute_dtype(result))
    dims = wrap_dims(dim, self.ndim)
    if is_zero(count(self, dims)):
        return NotImplemented
    largest = prims.amax(wide, dims=dims)
    largest = prims.where(prims.eq(prims.abs(largest), INF), 0, largest)
    total = prims.sum(prims.exp(prims.sub(wide, spread(largest, wide.shape, dims))), dims=dims)
    found = prims.add(prims.log(total), largest)
    return round_to(kept(found, dims) if keepdim else found, result)


# Scans
# --------------------------------------------------------------------------------------------------


def _scan(name: str, prim: Any) -> None:
    @rules.register(name)
    def rule(self: Tensor, dim: int, *, dtype: Dtype = None) -> Tensor:
        result = dtype or sum_dtype(self.dtype)
        wide = to_dtype(self, compute_dtype(result))
        scanned = prim(wide, dim=wrap_dim(dim, self.ndim)) if self.ndim else wide
        return round_to(scanned, result)


_scan("cumsum", prims.cumsum)
_scan("cumprod", prims.cumprod)


@rules.register("trace")
def trace(self: Tensor) -> Tensor:
    """Sum of the main diagonal."""
    positions = [iota(size, torch.int64, self.device) for size in self.shape]
    row, column = (along(x, self.shape, dim) for dim, x in enumerate(positions))
    return sum(prims.where(prims.eq(row, column), self, 0))
