"""Creation prims: tensors from numbers alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from primops.errors import PrimError
from primops.meta import Size, TensorMeta, contiguous
from primops.prim import define
from primops.prims.elementwise import NUMBERS, check_number
from primops.promotion import Number


def _full_rule(
    *, shape: Sequence[Size], value: Number, dtype: torch.dtype, device: torch.device
) -> TensorMeta:
    check_number(value, dtype)
    return contiguous(shape, dtype, device)


def _iota_rule(
    *, length: Size, start: Size, step: Size, dtype: torch.dtype, device: torch.device
) -> TensorMeta:
    if dtype not in NUMBERS:
        raise PrimError(f"does not make {dtype}")
    return contiguous((length,), dtype, device)


def _iota(
    *, length: int, start: int, step: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return (torch.arange(length, dtype=torch.int64, device=device) * step + start).to(dtype)


full = define(
    "full(*, shape, value, dtype, device)",
    group="creation",
    meaning="value everywhere, converted to dtype",
    dtype_rule="dtype",
    meta_rule=_full_rule,
    reference=lambda *, shape, value, dtype, device: torch.full(
        tuple(shape), value, dtype=dtype, device=device
    ),
    tags=frozenset({"creation"}),
)
iota = define(
    "iota(*, length, start, step, dtype, device)",
    group="creation",
    meaning="start + i * step in int64, converted to dtype, for i in [0, length)",
    dtype_rule="dtype",
    meta_rule=_iota_rule,
    reference=_iota,
    tags=frozenset({"creation"}),
)
