"""The loop IR's operations on Halide expressions, by their names, where Python allows them.

Values of float16 and bfloat16 are their bits in uint16, and bools are Halide's. Signed integers of
32 and 64 bits are added and multiplied as unsigned ones, since Halide takes their overflow for
impossible.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import halide as hl
import torch

Dtype = torch.dtype | None
TYPES: dict[Dtype, hl.Type] = {
    torch.bool: hl.Bool(), torch.uint8: hl.UInt(8), torch.int8: hl.Int(8), torch.int16: hl.Int(16),
    torch.int32: hl.Int(32), torch.int64: hl.Int(64), torch.float16: hl.UInt(16),
    torch.bfloat16: hl.UInt(16), torch.float32: hl.Float(32), torch.float64: hl.Float(64),
}  # fmt: skip
HALVES = (torch.float16, torch.bfloat16)
OUT_OF_RANGE, ZERO_DIVISOR = 7001, 7002
"""What the message of a failed requirement ends with."""


def number(value: float | int, dtype: hl.Type) -> hl.Expr:
    """A constant of a type of Halide's."""
    return hl.cast(dtype, hl.f64(float(value)) if dtype.is_float() else hl.i64(int(value)))


def constant(value: Any, dtype: Dtype) -> hl.Expr:
    """A constant of a dtype."""
    if dtype in HALVES:
        return cast(number(value, hl.Float(32)), torch.float32, dtype)
    return number(value, TYPES[dtype])


def cast(value: hl.Expr, source: Dtype, target: Dtype) -> hl.Expr:
    """ATen's conversion: to bool by comparison with zero, to small integers through int64."""
    if source in HALVES:
        value, source = _widen(value, source), torch.float32
    if target is torch.bool:
        return value if source is torch.bool else ne(value, hl.cast(value.type(), 0))
    if target in HALVES:
        return _narrow(hl.cast(hl.Float(32), value), target)
    if TYPES[source].is_float() and not TYPES[target].is_float() and target is not torch.int32:
        value = hl.cast(hl.Int(64), value)
    return hl.cast(TYPES[target], value)


def _widen(bits: hl.Expr, source: Dtype) -> hl.Expr:
    """The float32 of a half's bits. Halide emulates its own halves or links no conversion."""
    word = hl.cast(hl.UInt(32), bits)
    if source is torch.bfloat16:
        return hl.reinterpret(hl.Float(32), word << 16)
    magnitude = word & hl.u32(0x7FFF)
    aligned = hl.reinterpret(hl.Float(32), magnitude << 13) * hl.f32(2.0**112)
    found = hl.reinterpret(hl.UInt(32), aligned) | ((word & hl.u32(0x8000)) << 16)
    special = hl.select(magnitude >= hl.u32(0x7C00), hl.u32(0x7F800000), hl.u32(0))
    return hl.reinterpret(hl.Float(32), found | special)


def _narrow(value: hl.Expr, target: Dtype) -> hl.Expr:
    """The bits of the nearest half, even where two are as near."""
    bits = hl.reinterpret(hl.UInt(32), value)
    if target is torch.bfloat16:
        rounded = (bits + hl.u32(0x7FFF) + ((bits >> 16) & hl.u32(1))) >> 16
        return hl.cast(hl.UInt(16), hl.select(hl.is_nan(value), hl.u32(0x7FC0), rounded))
    magnitude = bits & hl.u32(0x7FFFFFFF)
    odd = (magnitude >> 13) & hl.u32(1)
    regular = hl.min((magnitude + odd + hl.u32(0xFFF) - hl.u32(0x38000000)) >> 13, hl.u32(0x7C00))
    shifted = hl.reinterpret(hl.Float(32), magnitude) + hl.f32(0.5)  # its last bit is 2**-24
    small = hl.reinterpret(hl.UInt(32), shifted) - hl.u32(0x3F000000)
    found = hl.select(magnitude < hl.u32(0x38800000), small, regular)
    found = hl.select(hl.is_nan(value), hl.u32(0x7E00), found)
    return hl.cast(hl.UInt(16), found | ((bits >> 16) & hl.u32(0x8000)))


def bitcast(value: hl.Expr, source: str, target: Dtype) -> hl.Expr:
    """The same bits as another dtype."""
    return hl.reinterpret(TYPES[target], value)


def expression(value: object) -> hl.Expr:
    """A number, variable or element as an expression."""
    return value if isinstance(value, hl.Expr) else hl.Expr(value)  # type: ignore[arg-type]


def _wrapping(compute: Callable[[hl.Expr, hl.Expr], hl.Expr]) -> Callable[..., hl.Expr]:
    def operation(a: hl.Expr, b: hl.Expr) -> hl.Expr:
        dtype = a.type()
        wraps = hl.UInt(dtype.bits()) if dtype.is_int() else dtype
        return hl.cast(dtype, compute(hl.cast(wraps, a), hl.cast(wraps, b)))

    return operation


add, sub, mul = map(_wrapping, (operator.add, operator.sub, operator.mul))
div, eq, lt, and_, or_ = operator.truediv, operator.eq, operator.lt, operator.and_, operator.or_


def neg(a: hl.Expr) -> hl.Expr:
    """-a; Halide's own minus is 0 - a, which loses the sign of zero."""
    return mul(a, hl.cast(a.type(), -1))


def abs(a: hl.Expr) -> hl.Expr:
    """|a|, which stays the most negative integer for that one."""
    dtype = a.type()
    absolute = a if dtype.is_uint() else hl.cast(dtype, hl.abs(a))
    return hl.select(a == 0, hl.cast(dtype, 0), absolute)  # Halide's of -0.0 may be -0.0


def minimum(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """The smaller one, NaN if one is."""
    return hl.select((a < b) | hl.is_nan(a), a, b) if a.type().is_float() else hl.min(a, b)


def maximum(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """The larger one, NaN if one is."""
    return hl.select((b < a) | hl.is_nan(a), a, b) if a.type().is_float() else hl.max(a, b)


def ne(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """Not a == b, so true for NaN."""
    return hl.logical_not(a == b) if a.type().is_float() else a != b


def le(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """A <= b; Halide takes it for not b < a."""
    return (a < b) | (a == b) if a.type().is_float() else a <= b


def xor(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """Bitwise exclusive or."""
    return a != b if a.type().is_bool() else a ^ b


def not_(a: hl.Expr) -> hl.Expr:
    """Bitwise complement."""
    return hl.logical_not(a) if a.type().is_bool() else ~a


def _shift(a: hl.Expr, b: hl.Expr, shift: Callable[..., hl.Expr], empties: bool) -> hl.Expr:
    """``a`` shifted by all its bits but one for a b that is negative or as large as the width, or
    zero then, if that ``empties`` it.
    """
    unsigned = hl.UInt(a.type().bits())
    amount, limit = hl.cast(unsigned, b), hl.cast(unsigned, a.type().bits() - 1)
    shifted = shift(a, hl.min(amount, limit))  # a negative b becomes large
    return hl.select(amount <= limit, shifted, hl.cast(a.type(), 0)) if empties else shifted


def lshift(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """A << b, zero for a b that is negative or as large as the width."""
    bits = hl.cast(hl.UInt(a.type().bits()), a)
    return hl.cast(a.type(), _shift(bits, b, operator.lshift, empties=True))


def rshift(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """The arithmetic a >> b; all bits go for a b that is negative or as large as the width."""
    return _shift(a, b, operator.rshift, empties=a.type().is_uint())


def _divisor(b: hl.Expr) -> hl.Expr:
    return hl.require(b != 0, b, hl.Expr(ZERO_DIVISOR))


def floordiv(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """Floor(a / b) of integers; Halide's remainder is never negative."""
    b = _divisor(b)
    return hl.select((b < 0) & (a % b != 0), sub(a / b, hl.cast(a.type(), 1)), a / b)


def remainder(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """What is left of floor(a / b) of integers, with the sign of b."""
    b = _divisor(b)
    return hl.select((b < 0) & (a % b != 0), a % b + b, a % b)


def fmod(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """What is left of trunc(a / b) of integers, with the sign of a."""
    return hl.mod_round_to_zero(a, _divisor(b))


def _float64(compute: Callable[..., hl.Expr]) -> Callable[..., hl.Expr]:
    """Computes float32 results in float64."""

    def operation(*args: hl.Expr) -> hl.Expr:
        return hl.cast(args[0].type(), compute(*(hl.cast(hl.Float(64), arg) for arg in args)))

    return operation


where, floor, ceil, trunc, round = hl.select, hl.floor, hl.ceil, hl.trunc, hl.round
sqrt, sin, cos, tan, atan, atan2 = hl.sqrt, hl.sin, hl.cos, hl.tan, hl.atan, hl.atan2
sinh, cosh, tanh = hl.sinh, hl.cosh, hl.tanh
pow = _float64(hl.pow)


@_float64
def expm1(a: hl.Expr) -> hl.Expr:
    """E**a - 1 of a float32; in float64, 1 hides nothing of a float32 above 1e-8."""
    return hl.select(hl.abs(a) < hl.f64(1e-8), a, hl.exp(a) - hl.f64(1.0))


@_float64
def log1p(a: hl.Expr) -> hl.Expr:
    """Ln(1 + a) of a float32."""
    return hl.select(hl.abs(a) < hl.f64(1e-8), a, hl.log(a + hl.f64(1.0)))


def exp(a: hl.Expr) -> hl.Expr:
    """E**a. Of float32 by powers of two and a polynomial (Cephes' expf), in two factors so that
    subnormals are right; Halide's own makes zero of them, and of the largest arguments.
    """
    if a.type().bits() == 64:
        return hl.exp(a)
    x = hl.clamp(a, hl.f32(-104.0), hl.f32(89.0))
    power = hl.round(x * hl.f32(1.44269504))
    r = x - power * hl.f32(0.693359375) - power * hl.f32(-2.12194440e-4)
    total = hl.f32(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1):
        total = total * r + hl.f32(factor)
    total = (total * r + hl.f32(5.0000001201e-1)) * (r * r) + r + hl.f32(1.0)
    whole = hl.cast(hl.Int(32), power)
    for part in (whole >> 1, whole - (whole >> 1)):
        total = total * hl.reinterpret(hl.Float(32), (part + 127) << 23)
    return hl.select(hl.is_nan(a), a, total)


def log(a: hl.Expr) -> hl.Expr:
    """Ln a; Halide's own of float32 takes no subnormals, infinity or NaN."""
    if a.type().bits() == 64:
        return hl.log(a)
    small = hl.log(a * hl.f32(2.0**32)) - hl.f32(22.18070977791825)
    found = hl.select(a < hl.f32(2.0**-126), small, hl.log(a))
    return hl.select(hl.is_nan(a) | (a == hl.f32(math.inf)), a, found)


def erf(a: hl.Expr) -> hl.Expr:
    """The error function of a float32, which is 1 from 4 on."""
    found = hl.erf(hl.clamp(a, hl.f32(-4.0), hl.f32(4.0)))
    return hl.select(hl.is_nan(a) | (a == 0), a, found)


def rsqrt(a: hl.Expr) -> hl.Expr:
    """1 / sqrt(a)."""
    return hl.cast(a.type(), 1) / hl.sqrt(a)


def _philox(seed: hl.Expr, place: hl.Expr, stream: int, rounds: int) -> hl.Expr:
    """The word at a place of a stream, by Philox4x32."""
    seed, place = (hl.cast(hl.UInt(64), value) for value in (seed, place))
    key = [hl.cast(hl.UInt(32), word) for word in (seed, seed >> 32)]
    c = [
        hl.cast(hl.UInt(32), word) for word in (place >> 2, place >> 34, hl.u32(stream), hl.u32(0))
    ]
    for _ in range(rounds):
        first = hl.cast(hl.UInt(64), c[0]) * hl.u64(0xD2511F53)
        second = hl.cast(hl.UInt(64), c[2]) * hl.u64(0xCD9E8D57)
        mixed = (second >> 32 ^ c[1] ^ key[0], second, first >> 32 ^ c[3] ^ key[1], first)
        c = [hl.cast(hl.UInt(32), word) for word in mixed]
        key = [key[0] + hl.u32(0x9E3779B9), key[1] + hl.u32(0xBB67AE85)]
    return hl.mux(hl.cast(hl.Int(32), place & 3), c)


def _unit(word: hl.Expr) -> hl.Expr:
    return hl.cast(hl.Float(32), hl.cast(hl.Int(32), word >> 8)) * hl.f32(2.0**-24)


def uniform(seed: hl.Expr, counter: hl.Expr) -> hl.Expr:
    """A float32 in [0, 1), by Philox4x32-10."""
    return _unit(_philox(seed, counter, 0, 10))


def uniform16(seed: hl.Expr, counter: hl.Expr) -> hl.Expr:
    """A float32 in [0, 1), by Philox4x32-7; two neighbours share a word."""
    word = _philox(seed, counter >> 1, 1, 7)
    return _unit(hl.select((counter & 1) == 1, (word >> 16) | (word << 16), word))
