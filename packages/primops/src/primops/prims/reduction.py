"""Reductions, which remove their dims, and scans, which keep the shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from primops.errors import PrimError
from primops.meta import TensorMeta, contiguous
from primops.prim import Prim, define
from primops.prims.elementwise import COMPARABLE, NUMBERS
from primops.prims.movement import check_sorted_dims

BOOL = frozenset({torch.bool})


def _reduced(a: TensorMeta, dims: Sequence[int], dtype: torch.dtype) -> TensorMeta:
    check_sorted_dims(dims, a.ndim)
    return contiguous(
        [size for dim, size in enumerate(a.shape) if dim not in dims], dtype, a.device
    )


def _check_nonempty(a: TensorMeta, dims: Sequence[int]) -> None:
    if any(isinstance(a.shape[dim], int) and a.shape[dim] == 0 for dim in dims):
        raise PrimError(f"reduction of {a.shape} over empty dims {tuple(dims)} has no value")


def _rule(domain: frozenset[torch.dtype], identity: bool) -> Callable[..., TensorMeta]:
    def rule(a: TensorMeta, *, dims: Sequence[int]) -> TensorMeta:
        if a.dtype not in domain:
            raise PrimError(f"does not take {a.dtype}")
        result = _reduced(a, dims, a.dtype)
        if not identity:
            _check_nonempty(a, dims)
        return result

    return rule


def _arg_rule(a: TensorMeta, *, dim: int) -> TensorMeta:
    if a.dtype not in NUMBERS:
        raise PrimError(f"does not take {a.dtype}")
    result = _reduced(a, (dim,), torch.int64)
    _check_nonempty(a, (dim,))
    return result


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


def _reduction(
    name: str,
    meaning: str,
    domain: frozenset[torch.dtype],
    reference: Callable[..., torch.Tensor],
    **more: str,
) -> Prim:
    return define(
        f"{name}(a, *, dims)",
        group="reduction",
        meaning=meaning,
        dtype_rule="that of a",
        meta_rule=_rule(domain, identity=name not in ("amax", "amin")),
        reference=reference,
        tags=frozenset({"reduction"}),
        **more,
    )


def _along(
    name: str,
    meaning: str,
    reference: Callable[..., torch.Tensor],
    rule: Callable[..., TensorMeta],
    **more: str,
) -> Prim:
    """A reduction or scan of one dim."""
    return define(
        f"{name}(a, *, dim)",
        meaning=meaning,
        meta_rule=rule,
        reference=reference,
        tags=frozenset({more["group"]}),
        **more,
    )


_arg_reduction = partial(_along, rule=_arg_rule, group="reduction", dtype_rule="int64")
_scan = partial(
    _along,
    rule=_scan_rule,
    group="scan",
    dtype_rule="that of a",
    numerics="accumulates in the operand's dtype",
)


ACCUMULATION = "accumulates in the operand's dtype, in any order"

sum_ = _reduction(
    "sum", "sum over dims, 0 for none", NUMBERS,
    _unless_no_dims(lambda a, dims: torch.sum(a, dims, dtype=a.dtype)), numerics=ACCUMULATION,
)  # fmt: skip
prod = _reduction("prod", "product over dims, 1 for none", NUMBERS, _prod, numerics=ACCUMULATION)
amax = _reduction(
    "amax", "maximum over non-empty dims; NaN wins", COMPARABLE, _unless_no_dims(torch.amax)
)
amin = _reduction(
    "amin", "minimum over non-empty dims; NaN wins", COMPARABLE, _unless_no_dims(torch.amin)
)
any_ = _reduction("any", "whether one element over dims is true", BOOL, _unless_no_dims(torch.any))
all_ = _reduction(
    "all", "whether all elements over dims are true", BOOL, _unless_no_dims(torch.all)
)
argmax = _arg_reduction(
    "argmax",
    "position of the first maximum along dim; NaN counts as largest",
    lambda a, *, dim: torch.argmax(a, dim),
)
argmin = _arg_reduction(
    "argmin",
    "position of the first minimum along dim; NaN counts as smallest",
    lambda a, *, dim: torch.argmin(a, dim),
)
cumsum = _scan(
    "cumsum",
    "sums of the first 1, 2, ... elements along dim",
    lambda a, *, dim: torch.cumsum(a, dim, dtype=a.dtype),
)
cumprod = _scan(
    "cumprod",
    "products of the first 1, 2, ... elements along dim",
    lambda a, *, dim: torch.cumprod(a, dim, dtype=a.dtype),
)
