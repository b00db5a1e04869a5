"""The loop IR's operations on Halide expressions, under the names that kernel texts use.

Values of float16 and bfloat16 are their bits in uint16, and bools are Halide's. Signed integers of
32 and 64 bits are added and multiplied as unsigned ones, since Halide takes their overflow for
impossible.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce

import halide as hl

TYPES: dict[str, hl.Type] = {
    "bool": hl.Bool(), "uint8": hl.UInt(8), "int8": hl.Int(8), "int16": hl.Int(16),
    "int32": hl.Int(32), "int64": hl.Int(64), "float16": hl.UInt(16), "bfloat16": hl.UInt(16),
    "float32": hl.Float(32), "float64": hl.Float(64),
}  # fmt: skip
HALVES = ("float16", "bfloat16")
inf, nan = math.inf, math.nan
OUT_OF_RANGE, ZERO_DIVISOR = 7001, 7002
"""What the message of a failed requirement ends with."""


def constant(number: float | int | bool, dtype: str) -> hl.Expr:
    """A number of a dtype."""
    if dtype in HALVES:
        return cast(hl.f32(float(number)), "float32", dtype)
    if TYPES[dtype].is_float():
        wide = hl.f64(float(number))
        return wide if dtype == "float64" else hl.f32(float(number))
    return hl.cast(TYPES[dtype], hl.i64(int(number)))


def cast(value: hl.Expr, source: str, target: str) -> hl.Expr:
    """ATen's conversion: to bool by comparison with zero, to small integers through int64."""
    if source in HALVES:
        value, source = _widen(value, source), "float32"
    if target == "bool":
        return value if source == "bool" else not_equal_zero(value)
    if target in HALVES:
        return _narrow(hl.cast(hl.Float(32), value), target)
    if TYPES[source].is_float() and not TYPES[target].is_float():
        value = hl.cast(hl.Int(64), value) if target != "int32" else value
    return hl.cast(TYPES[target], value)


def not_equal_zero(value: hl.Expr) -> hl.Expr:
    """Whether ``value`` is not zero, as is NaN."""
    return ne(value, hl.cast(value.type(), 0))


def _widen(bits: hl.Expr, source: str) -> hl.Expr:
    """The float32 of a half's bits. Halide emulates its own halves on most processors."""
    word = hl.cast(hl.UInt(32), bits)
    if source == "bfloat16":
        return hl.reinterpret(hl.Float(32), word << 16)
    magnitude = (word & hl.u32(0x7FFF)) << 13
    offset = hl.select(magnitude >= hl.u32(0x0F800000), hl.u32(0x70000000), hl.u32(0x38000000))
    tiny = hl.cast(hl.Float(32), hl.cast(hl.Int(32), word & hl.u32(0x3FF))) * hl.f32(2.0**-24)
    small = magnitude < hl.u32(0x00800000)
    found = hl.select(small, hl.reinterpret(hl.UInt(32), tiny), magnitude + offset)
    return hl.reinterpret(hl.Float(32), found | ((word & hl.u32(0x8000)) << 16))


def _narrow(value: hl.Expr, target: str) -> hl.Expr:
    """The bits of the nearest half, even where two are as near."""
    bits = hl.reinterpret(hl.UInt(32), value)
    if target == "bfloat16":
        rounded = (bits + hl.u32(0x7FFF) + ((bits >> 16) & hl.u32(1))) >> 16
        return hl.cast(hl.UInt(16), hl.select(hl.is_nan(value), hl.u32(0x7FC0), rounded))
    magnitude = bits & hl.u32(0x7FFFFFFF)
    odd = (magnitude >> 13) & hl.u32(1)
    regular = (magnitude + odd + hl.u32(0xFFF) - hl.u32(0x38000000)) >> 13
    shifted = hl.reinterpret(hl.Float(32), magnitude) + hl.f32(0.5)  # its last bit is 2**-24
    small = hl.reinterpret(hl.UInt(32), shifted) - hl.u32(0x3F000000)
    found = hl.select(magnitude < hl.u32(0x38800000), small, regular)
    found = hl.select(magnitude >= hl.u32(0x47800000), hl.u32(0x7C00), found)
    found = hl.select(hl.is_nan(value), hl.u32(0x7E00), found)
    return hl.cast(hl.UInt(16), found | ((bits >> 16) & hl.u32(0x8000)))


def bitcast(value: hl.Expr, source: str, target: str) -> hl.Expr:
    """The same bits as another dtype."""
    return hl.reinterpret(TYPES[target], value)


def index_value(value: hl.Expr | int, dtype: str) -> hl.Expr:
    """The value of an index expression."""
    return cast(hl.cast(hl.Int(64), value), "int64", dtype)


def index(value: hl.Expr) -> hl.Expr:
    """An indirect value as part of an index."""
    return hl.cast(hl.Int(32), value)


def index_min(*values: hl.Expr | int) -> hl.Expr:
    """The smallest of index expressions."""
    return reduce(hl.min, (expression(value) for value in values))


def index_max(*values: hl.Expr | int) -> hl.Expr:
    """The largest of index expressions."""
    return reduce(hl.max, (expression(value) for value in values))


def expression(value: object) -> hl.Expr:
    """A number, variable or element as an expression."""
    return value if isinstance(value, hl.Expr) else hl.Expr(value)  # type: ignore[arg-type]


def _wrapping(compute: Callable[[hl.Expr, hl.Expr], hl.Expr]) -> Callable[..., hl.Expr]:
    def operation(a: hl.Expr, b: hl.Expr) -> hl.Expr:
        dtype = a.type()
        if not dtype.is_int() or dtype.bits() < 32:
            return compute(a, b)
        unsigned = hl.UInt(dtype.bits())
        return hl.cast(dtype, compute(hl.cast(unsigned, a), hl.cast(unsigned, b)))

    return operation


add, sub, mul = map(_wrapping, (operator.add, operator.sub, operator.mul))
div, eq, lt, and_, or_ = operator.truediv, operator.eq, operator.lt, operator.and_, operator.or_
where = hl.select


def neg(a: hl.Expr) -> hl.Expr:
    """-a; Halide's own minus is 0 - a, which loses the sign of zero."""
    minus_one = hl.cast(a.type(), -1)
    return a * minus_one if a.type().is_float() else sub(hl.cast(a.type(), 0), a)


def abs(a: hl.Expr) -> hl.Expr:
    """|a|, which stays the most negative integer for that one."""
    dtype = a.type()
    if dtype.is_float():  # Halide's own keeps the sign of a zero in float64
        unsigned = hl.UInt(dtype.bits())
        bits = hl.reinterpret(unsigned, a) & hl.cast(unsigned, hl.u64((1 << dtype.bits() - 1) - 1))
        return hl.reinterpret(dtype, bits)
    return a if a.type().is_uint() else hl.select(a < 0, neg(a), a)


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


def lshift(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """A << b, zero for a b that is negative or as large as the width."""
    dtype, unsigned = a.type(), hl.UInt(a.type().bits())
    amount = hl.cast(unsigned, b)  # a negative one becomes large
    limit = hl.cast(unsigned, dtype.bits() - 1)
    shifted = hl.cast(unsigned, a) << hl.min(amount, limit)
    return hl.cast(dtype, hl.select(amount <= limit, shifted, hl.cast(unsigned, 0)))


def rshift(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """The arithmetic a >> b; all bits go for a b that is negative or as large as the width."""
    dtype, unsigned = a.type(), hl.UInt(a.type().bits())
    amount = hl.cast(unsigned, b)
    limit = hl.cast(unsigned, dtype.bits() - 1)
    shifted = a >> hl.min(amount, limit)
    if dtype.is_uint():
        return hl.select(amount <= limit, shifted, hl.cast(dtype, 0))
    return shifted


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


def copy_sign(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """The float32 |a| with the sign bit of b."""
    bits = hl.reinterpret(hl.UInt(32), b) & hl.u32(1 << 31)
    return hl.reinterpret(hl.Float(32), hl.reinterpret(hl.UInt(32), abs(a)) | bits)


def _float64(compute: Callable[..., hl.Expr]) -> Callable[..., hl.Expr]:
    """Computes float32 results in float64."""

    def operation(*args: hl.Expr) -> hl.Expr:
        return hl.cast(args[0].type(), compute(*(hl.cast(hl.Float(64), arg) for arg in args)))

    return operation


floor, ceil, trunc, round = hl.floor, hl.ceil, hl.trunc, hl.round
sqrt = hl.sqrt
sin, cos, tan, atan, atan2 = hl.sin, hl.cos, hl.tan, hl.atan, hl.atan2
sinh, cosh, tanh = hl.sinh, hl.cosh, hl.tanh
pow = _float64(hl.pow)


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
    first = whole >> 1
    for part in (first, whole - first):
        total = total * hl.reinterpret(hl.Float(32), (part + 127) << 23)
    return hl.select(hl.is_nan(a), a, total)


def log(a: hl.Expr) -> hl.Expr:
    """Ln a; Halide's own of float32 takes no subnormals, infinity or NaN."""
    if a.type().bits() == 64:
        return hl.log(a)
    small = hl.log(a * hl.f32(2.0**32)) - hl.f32(22.18070977791825)
    found = hl.select(a < hl.f32(2.0**-126), small, hl.log(a))
    return hl.select(hl.is_nan(a) | (a == hl.f32(inf)), a, found)


def erf(a: hl.Expr) -> hl.Expr:
    """The error function of a float32, which is 1 from 4 on."""
    found = copy_sign(hl.erf(hl.min(abs(a), hl.f32(4.0))), a)
    return hl.select(hl.is_nan(a), a, found)


def rsqrt(a: hl.Expr) -> hl.Expr:
    """1 / sqrt(a)."""
    return hl.cast(a.type(), 1) / hl.sqrt(a)


def _philox(seed: hl.Expr, block: hl.Expr, stream: int, rounds: int) -> list[hl.Expr]:
    key = [hl.cast(hl.UInt(32), seed), hl.cast(hl.UInt(32), seed >> 32)]
    c = [hl.cast(hl.UInt(32), block), hl.cast(hl.UInt(32), block >> 32), hl.u32(stream), hl.u32(0)]
    for _ in range(rounds):
        first = hl.cast(hl.UInt(64), c[0]) * hl.u64(0xD2511F53)
        second = hl.cast(hl.UInt(64), c[2]) * hl.u64(0xCD9E8D57)
        c = [
            hl.cast(hl.UInt(32), second >> 32) ^ c[1] ^ key[0], hl.cast(hl.UInt(32), second),
            hl.cast(hl.UInt(32), first >> 32) ^ c[3] ^ key[1], hl.cast(hl.UInt(32), first),
        ]  # fmt: skip
        key = [key[0] + hl.u32(0x9E3779B9), key[1] + hl.u32(0xBB67AE85)]
    return c


def _lane(words: list[hl.Expr], number: hl.Expr) -> hl.Expr:
    low = hl.select((number & 1) == 0, words[0], words[1])
    return hl.select(number < 2, low, hl.select((number & 1) == 0, words[2], words[3]))


def _unit(word: hl.Expr) -> hl.Expr:
    return hl.cast(hl.Float(32), hl.cast(hl.Int(32), word >> 8)) * hl.f32(2.0**-24)


def uniform(seed: hl.Expr, counter: hl.Expr) -> hl.Expr:
    """A float32 in [0, 1), by Philox4x32-10."""
    words = _philox(hl.cast(hl.UInt(64), seed), hl.cast(hl.UInt(64), counter >> 2), 0, 10)
    return _unit(_lane(words, hl.cast(hl.UInt(32), counter) & 3))


def uniform16(seed: hl.Expr, counter: hl.Expr) -> hl.Expr:
    """A float32 in [0, 1), by Philox4x32-7; two neighbours share a lane."""
    words = _philox(hl.cast(hl.UInt(64), seed), hl.cast(hl.UInt(64), counter >> 3), 1, 7)
    word = _lane(words, hl.cast(hl.UInt(32), counter >> 1) & 3)
    swapped = (word >> 16) | (word << 16)
    return _unit(hl.select((counter & 1) == 1, swapped, word))
