"""Reductions, which remove their dims, and scans, which keep the shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from primops.errors import PrimError
from primops.meta import TensorMeta, contiguous
from primops.prim import group
from primops.prims.elementwise import COMPARABLE, NUMBERS
from primops.prims.movement import check_sorted_dims
from primops.shapes import is_zero

BOOL = frozenset({torch.bool})


def _rule(domain: frozenset[torch.dtype], identity: bool = True) -> Callable[..., TensorMeta]:
    def rule(a: TensorMeta, *, dims: Sequence[int]) -> TensorMeta:
        if a.dtype not in domain:
            raise PrimError(f"does not take {a.dtype}")
        check_sorted_dims(dims, a.ndim)
        if not identity and any(is_zero(a.shape[dim]) for dim in dims):
            raise PrimError(f"reduction of {a.shape} over empty dims {tuple(dims)} has no value")
        rest = [size for dim, size in enumerate(a.shape) if dim not in dims]
        return contiguous(rest, a.dtype, a.device)

    return rule


def _arg_rule(a: TensorMeta, *, dim: int) -> TensorMeta:
    return replace(_rule(NUMBERS, identity=False)(a, dims=(dim,)), dtype=torch.int64)


def _scan_rule(a: TensorMeta, *, dim: int) -> TensorMeta:
    if a.dtype not in NUMBERS or not 0 <= dim < a.ndim:
        raise PrimError(f"does not take {a.dtype} {a.shape} along {dim}")
    return contiguous(a.shape, a.dtype, a.device)


def _prod(a: torch.Tensor, *, dims: Sequence[int]) -> torch.Tensor:
    for dim in reversed(dims):
        a = torch.prod(a, dim, dtype=a.dtype)
    return a.clone()


def _unless_no_dims(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """ATen reads an empty list of dims as all dims; here it means none."""
    return lambda a, *, dims: function(a, list(dims)) if dims else a.clone()


ACCUMULATION = "accumulates in the operand's dtype, in any order"
_reduction = group("reduction", "reduction", dtype_rule="that of a")
_position = group("reduction", "reduction", dtype_rule="int64")
_scan = group("scan", "scan", dtype_rule="that of a", numerics="accumulates in the operand's dtype")

sum_ = _reduction(
    "sum(a, *, dims)", _rule(NUMBERS),
    _unless_no_dims(lambda a, dims: torch.sum(a, dims, dtype=a.dtype)),
    "sum over dims, 0 for none", numerics=ACCUMULATION,
)  # fmt: skip
prod = _reduction(
    "prod(a, *, dims)", _rule(NUMBERS), _prod, "product over dims, 1 for none",
    numerics=ACCUMULATION,
)  # fmt: skip
amax = _reduction(
    "amax(a, *, dims)", _rule(COMPARABLE, identity=False), _unless_no_dims(torch.amax),
    "maximum over non-empty dims; NaN wins",
)  # fmt: skip
amin = _reduction(
    "amin(a, *, dims)", _rule(COMPARABLE, identity=False), _unless_no_dims(torch.amin),
    "minimum over non-empty dims; NaN wins",
)  # fmt: skip
any_ = _reduction(
    "any(a, *, dims)", _rule(BOOL), _unless_no_dims(torch.any),
    "whether one element over dims is true",
)  # fmt: skip
all_ = _reduction(
    "all(a, *, dims)", _rule(BOOL), _unless_no_dims(torch.all),
    "whether all elements over dims are true",
)  # fmt: skip
argmax = _position(
    "argmax(a, *, dim)", _arg_rule, lambda a, *, dim: torch.argmax(a, dim),
    "position of the first maximum along dim; NaN counts as largest",
)  # fmt: skip
argmin = _position(
    "argmin(a, *, dim)", _arg_rule, lambda a, *, dim: torch.argmin(a, dim),
    "position of the first minimum along dim; NaN counts as smallest",
)  # fmt: skip
cumsum = _scan(
    "cumsum(a, *, dim)", _scan_rule, lambda a, *, dim: torch.cumsum(a, dim, dtype=a.dtype),
    "sums of the first 1, 2, ... elements along dim",
)  # fmt: skip
cumprod = _scan(
    "cumprod(a, *, dim)", _scan_rule, lambda a, *, dim: torch.cumprod(a, dim, dtype=a.dtype),
    "products of the first 1, 2, ... elements along dim",
)  # fmt: skip
