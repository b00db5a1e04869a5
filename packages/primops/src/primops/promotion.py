"""ATen's dtype rules: promotion by category, integers to float, accumulation dtypes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

HALF_DTYPES = frozenset({torch.float16, torch.bfloat16})
COMPUTE_FLOATS = frozenset({torch.float32, torch.float64})
INTEGER_DTYPES = frozenset(
    getattr(torch, f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)
)

PRIM_DTYPES = HALF_DTYPES | COMPUTE_FLOATS | INTEGER_DTYPES | {torch.bool}
STORED_DTYPES = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
"""Dtypes that conversions take and nothing computes in."""

Number = int | float | bool | complex | torch.SymInt | torch.SymFloat | torch.SymBool
NUMBER_TYPES = (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)


def is_number(value: object) -> bool:
    """Whether the value is a Python or symbolic number."""
    return isinstance(value, NUMBER_TYPES)


def limits(dtype: torch.dtype) -> tuple[float, float]:
    """The least and the greatest element of a dtype; infinities for floats."""
    if dtype.is_floating_point:
        return -math.inf, math.inf
    info = torch.iinfo(dtype)
    return info.min, info.max


def is_integral(dtype: torch.dtype) -> bool:
    """Integers and bool."""
    return dtype in INTEGER_DTYPES or dtype is torch.bool


def number_dtype(value: object) -> torch.dtype:
    """The dtype that a wrapped number takes part in promotion with."""
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(value, (int, torch.SymInt)):
        return torch.int64
    if isinstance(value, complex):
        return torch.complex128 if torch.get_default_dtype() is torch.float64 else torch.complex64
    return torch.get_default_dtype()


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """Joins a category's dtype with that of the next weaker one (dims > 0-dim > numbers)."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return torch.promote_types(higher, torch.complex32) if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def _join(dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
    result: torch.dtype | None = None
    for dtype in dtypes:
        if dtype is not result:
            result = dtype if result is None else torch.promote_types(result, dtype)
    return result


def result_dtype(*operands: object) -> torch.dtype:
    """``torch.result_type`` for tensors, metas, graph values and numbers. Tensors need ``dtype``
    and ``ndim``.
    """
    dims: list[torch.dtype] = []
    scalars: list[torch.dtype] = []
    numbers: list[torch.dtype] = []
    for operand in operands:
        if is_number(operand):
            numbers.append(number_dtype(operand))
        elif operand.ndim:  # type: ignore[attr-defined]
            dims.append(operand.dtype)  # type: ignore[attr-defined]
        else:
            scalars.append(operand.dtype)  # type: ignore[attr-defined]
    if len(dims) == 1 and not scalars and not numbers:
        return dims[0]
    joined = _combine(_join(dims), _combine(_join(scalars), _join(numbers)))
    return torch.get_default_dtype() if joined is None else joined


def to_float_dtype(dtype: torch.dtype) -> torch.dtype:
    """Integers and bool become the default float dtype, as in ``torch.sqrt``."""
    return torch.get_default_dtype() if is_integral(dtype) else dtype


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Result dtype of ``sum``, ``prod`` and the scans: int64 for integers and bool."""
    return torch.int64 if is_integral(dtype) else dtype


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that arithmetic on ``dtype`` is done in (clause C3.3)."""
    return torch.float32 if dtype in HALF_DTYPES else dtype
