"""How each operation is written in Triton: tables from operation to template, per class of
dtype.
"""

from __future__ import annotations

import math

import torch
from loopir import BuildError

from inductor_triton.spec import INT32_LIMIT

TRITON_DTYPES: dict[torch.dtype, str] = {
    torch.bool: "tl.int1", torch.uint8: "tl.uint8", torch.int8: "tl.int8", torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64", torch.float16: "tl.float16", torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64", torch.float8_e4m3fn: "tl.uint8", torch.float8_e5m2: "tl.uint8",
}  # fmt: skip
SIGNATURES: dict[torch.dtype, str] = {
    torch.bool: "*i1", torch.uint8: "*u8", torch.int8: "*i8", torch.int16: "*i16",
    torch.int32: "*i32", torch.int64: "*i64",
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.float8_e4m3fn: "*u8", torch.float8_e5m2: "*u8",
}  # fmt: skip
BITS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
"""Floats that are stored as integers in the source, so that every architecture and the interpreter
support them.
"""
LARGE_E4M3 = int(torch.tensor(1e30).to(torch.float8_e4m3fn).view(torch.uint8))
"""The result of casting a number beyond the range: NaN; the largest number from torch 2.12 on."""
STORAGE_FLOATS = (torch.float16, torch.bfloat16)

NAN = "propagate_nan=tl.PropagateNan.ALL"
INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^",
    "lshift": "<<", "rshift": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
}  # fmt: skip
SHARED = {name: f"{{0}} {sign} {{1}}" for name, sign in INFIX.items()} | {
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "where": "tl.where({0}, {1}, {2})",
    "uniform": "uniform({0}, {1})",
    "uniform16": "uniform16({0}, {1})",
    "after": "({0} + ({1} < 0.0).to(tl.int32))",
}
NO_PRODUCTS = {
    "load", "constant", "index_expr", "cast", "reduce", "scan", "uniform", "uniform16", "where",
    "add", "sub", "div", "div_rn",
    "abs", "floor", "ceil", "trunc", "round", "sqrt", "maximum", "minimum", "gelu",
}  # fmt: skip
"""Operations whose last step is not a product of floats."""
FLOAT = SHARED | {
    "minimum": f"tl.minimum({{0}}, {{1}}, {NAN})",
    "maximum": f"tl.maximum({{0}}, {{1}}, {NAN})",
}
_LIBDEVICE = ("tan", "asin", "acos", "atan", "lgamma")
_LIBDEVICE_FLOAT64 = ("expm1", "log1p", "sinh", "cosh", "tanh")
FLOAT32 = FLOAT | {name: f"libdevice.{name}({{0}})" for name in _LIBDEVICE} | {
    "add_rn": "add_rn32({0}, {1})", "sub_rn": "sub_rn32({0}, {1})",
    "div_rn": "tl.div_rn({0}, {1})",
    "floor": "floor32({0})", "ceil": "ceil32({0})", "trunc": "trunc32({0})",
    "round": "round32({0})",
    "exp": "exp32({0})", "expm1": "expm1_32({0})", "log": "log32({0})", "log2": "log2_32({0})",
    "log1p": "log1p32({0})",
    "sqrt": "tl.sqrt_rn({0})", "rsqrt": "rsqrt32({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})",
    "sinh": "sinh32({0})", "cosh": "cosh32({0})", "tanh": "tanh32({0})", "erf": "erf32({0})",
    "pow": "libdevice.pow({0}, {1})", "atan2": "libdevice.atan2({0}, {1})",
    "fmod": "libdevice.fmod({0}, {1})",
    "remainder": "remainder_float(libdevice.fmod({0}, {1}), {1})",
    "exp16": "exp16({0})", "tanh16": "tanh16({0})", "one_plus_erf16": "one_plus_erf16({0})",
    "one_plus_erf32": "one_plus_erf32({0})", "exp_difference": "exp_difference({0}, {1})",
    "exp_scaled": "tl.exp2({0} * {1} - {2})", "row_scale": "row_scale({0})",
    "reciprocal": "1.0 / {0}",
}  # fmt: skip
FLOAT64 = FLOAT | {name: f"libdevice.{name}({{0}})" for name in (*_LIBDEVICE,
    *_LIBDEVICE_FLOAT64)} | {
    "add_rn": "add_rn64({0}, {1})", "sub_rn": "sub_rn64({0}, {1})",
    "floor": "floor64({0})", "ceil": "ceil64({0})", "trunc": "trunc64({0})",
    "round": "round64({0})",
    "exp": "tl.exp({0})", "log": "tl.log({0})", "log2": "tl.log2({0})", "sqrt": "tl.sqrt({0})",
    "rsqrt": "1.0 / tl.sqrt({0})",
    "sin": "tl.sin({0})", "cos": "tl.cos({0})", "erf": "tl.erf({0})",
    "pow": "libdevice.pow({0}, {1})", "atan2": "libdevice.atan2({0}, {1})",
    "fmod": "libdevice.fmod({0}, {1})",
    "remainder": "remainder_float(libdevice.fmod({0}, {1}), {1})",
}  # fmt: skip
INTEGER = SHARED | {
    "minimum": "tl.minimum({0}, {1})", "maximum": "tl.maximum({0}, {1})",
    "remainder": "remainder_int({0}, {1})", "fmod": "{0} % {1}",
    "floordiv": "floordiv_int({0}, {1})", "not": "~{0}",
    "narrow_place": f"tl.where(({{0}} >= 0) & ({{0}} <= {INT32_LIMIT}), {{0}}, -1).to(tl.int32)",
}  # fmt: skip
UNSIGNED = INTEGER | {
    "abs": "{0}", "neg": "0 - {0}", "not": "{0} ^ 255",
    "remainder": "{0} % {1}", "floordiv": "{0} // {1}",
}  # fmt: skip
BOOL = INTEGER | {"minimum": "{0} & {1}", "maximum": "{0} | {1}", "not": "{0} == 0"}


def templates(dtype: torch.dtype) -> dict[str, str]:
    """The templates of the elementwise operations on ``dtype``."""
    if dtype is torch.float64:
        return FLOAT64
    if dtype.is_floating_point:
        return FLOAT32
    return {torch.bool: BOOL, torch.uint8: UNSIGNED}.get(dtype, INTEGER)


def elementwise(op: str, dtype: torch.dtype, operands: list[str]) -> str:
    """The expression of an elementwise operation whose operands (the last one, for ``where``) have
    ``dtype``.
    """
    template = templates(dtype).get(op)
    if template is None:
        raise BuildError(f"no Triton form of {op} on {dtype}")
    return template.format(*operands)


def format_constant(value: object, dtype: torch.dtype) -> str:
    """A Triton literal."""
    if dtype is torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        return str(int(value))  # type: ignore[call-overload]
    number = float(value)  # type: ignore[arg-type]
    return repr(number) if math.isfinite(number) else f'float("{number}")'


def constant_text(value: object, dtype: torch.dtype) -> str:
    """A scalar of exactly ``dtype``."""
    if dtype in BITS:
        return f"tl.full([], {int(torch.tensor(value, dtype=dtype).view(torch.uint8))}, tl.uint8)"
    if dtype is torch.bfloat16:
        return f"to_bfloat16(tl.full([], {format_constant(value, dtype)}, tl.float32))"
    return f"tl.full([], {format_constant(value, dtype)}, {TRITON_DTYPES[dtype]})"


def cast(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """A conversion by ATen's rules."""
    if source == target:
        return text
    if source in BITS:
        return cast(f"from_{BITS[source]}({text})", torch.float32, target)
    if target in BITS:
        beyond = f", {LARGE_E4M3}" if target is torch.float8_e4m3fn else ""
        return f"to_{BITS[target]}({cast(text, source, torch.float32)}{beyond})"
    if target is torch.bool:
        return f"{text} != 0"
    if target in STORAGE_FLOATS and source is not torch.float32:
        return cast(f"{text}.to(tl.float32)", torch.float32, target)
    if target is torch.bfloat16:
        return f"to_bfloat16({text})"
    if source.is_floating_point and target in (torch.uint8, torch.int8, torch.int16):
        # A float outside the small type's range wraps as it does in C, through the wider integer.
        return f"{text}.to(tl.int32).to({TRITON_DTYPES[target]})"
    return f"{text}.to({TRITON_DTYPES[target]})"


def lowest(dtype: torch.dtype) -> object:
    """The identity of ``max``."""
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> object:
    """The identity of ``min``."""
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


def identity(kind: str, dtype: torch.dtype) -> str:
    """The literal that leaves a reduction of ``kind`` unchanged."""
    if kind in ("max", "argmax"):
        return format_constant(lowest(dtype), dtype)
    if kind in ("min", "argmin"):
        return format_constant(highest(dtype), dtype)
    return format_constant({"sum": 0, "any": 0, "prod": 1, "all": 1}[kind], dtype)
