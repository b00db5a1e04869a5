"""Creation prims: tensors from numbers alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from primops.errors import PrimError
from primops.meta import Size, TensorMeta, contiguous
from primops.prim import group
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


_creation = group("creation", "creation", dtype_rule="dtype")
full = _creation(
    "full(*, shape, value, dtype, device)", _full_rule,
    lambda *, shape, value, dtype, device: torch.full(
        tuple(shape), value, dtype=dtype, device=device
    ),
    "value everywhere, converted to dtype",
)  # fmt: skip
iota = _creation(
    "iota(*, length, start, step, dtype, device)", _iota_rule, _iota,
    "start + i * step in int64, converted to dtype, for i in [0, length)",
)  # fmt: skip
