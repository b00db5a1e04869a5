"""Element types: their names in generated code and the spelling of their literals."""

from __future__ import annotations

import math
import struct

import torch

C_TYPES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
"""Dtypes that a kernel may use, with their names in the runtime header."""

STORAGE_ONLY = (torch.float16, torch.bfloat16)
INT64_MIN = -(1 << 63)


def c_type(dtype: torch.dtype | None) -> str:
    """The name of ``dtype`` in generated code; raises NotImplementedError for one that has none."""
    if dtype not in C_TYPES:
        raise NotImplementedError(
            f"no C++ element type for {dtype}; supported: {', '.join(str(d) for d in C_TYPES)}"
        )
    return C_TYPES[dtype]


def literal(number: float | int | bool, dtype: torch.dtype | None) -> str:
    """``number`` as a constant expression of type ``dtype``, rounded or wrapped to it first."""
    if dtype is torch.bool:
        return "true" if number else "false"
    if dtype in STORAGE_ONLY:
        bits = int(torch.tensor(number, dtype=dtype).view(torch.int16).item()) & 0xFFFF
        return f"{c_type(dtype)}{{0x{bits:04x}}}"
    if dtype in (torch.float32, torch.float64):
        return _float_literal(float(number), dtype is torch.float32)
    return _integer_literal(int(number), dtype)


def _float_literal(number: float, single: bool) -> str:
    if math.isnan(number):
        return '__builtin_nanf("")' if single else '__builtin_nan("")'
    if single:
        number = _to_single(number)
    if math.isinf(number):
        return ("-" if number < 0 else "") + ("INF32" if single else "INF64")
    if not single:
        return repr(number)
    shortest = (f"{number:.{digits}g}" for digits in range(6, 10))
    # nine digits always suffice
    text = next(text for text in shortest if _to_single(float(text)) == number)
    if not any(mark in text for mark in ".e"):
        text += ".0"
    return text + "f"


def _to_single(number: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)


def _integer_literal(number: int, dtype: torch.dtype | None) -> str:
    name = c_type(dtype)
    if name == "i64":
        return "(-9223372036854775807ll - 1)" if number == INT64_MIN else f"{number}ll"
    return f"{name}({number})"
