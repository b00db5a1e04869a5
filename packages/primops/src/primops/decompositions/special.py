"""Special functions: those of the library by prims of their name, and what follows from them."""

from __future__ import annotations

import functools
import math

import torch

from primops import prims
from primops.decompositions.arithmetic import times
from primops.operand import (
    Scalar,
    Tensor,
    binary,
    elementwise,
    full_like,
    pointwise,
    rounded,
    to_dtype,
)
from primops.prims.elementwise import SPECIAL_FUNCTIONS
from primops.promotion import HALF_DTYPES, is_integral, is_number, result_dtype, to_float_dtype
from primops.registry import DecompositionTable

rules = DecompositionTable()
INF = float("inf")
PLAIN_NAMES = ("erfc", "erfinv", "digamma", "i0", "igamma", "igammac")  # others begin with special_


NUMBERS = {"zeta": ("other", "self")} | {
    name: ("n", "x") for name in SPECIAL_FUNCTIONS if "polynomial" in name
}
"""Operands that may be numbers, in an overload of their name."""

for _name, _prim in SPECIAL_FUNCTIONS.items():
    if _name not in ("nextafter", "gcd", "lcm"):
        _aten = _name if _name in PLAIN_NAMES else f"special_{_name}"
        _overloads = [f"{_aten}.{operand}_scalar" for operand in NUMBERS.get(_name, ())]
        rules.register(_aten, *_overloads)(functools.partial(elementwise, _prim, to_float=True))


@rules.register("nextafter")
def nextafter(self: Tensor, other: Tensor) -> Tensor:
    """The next float; of half dtypes it stays an ATen call."""
    is_half = result_dtype(self, other) in HALF_DTYPES
    return NotImplemented if is_half else elementwise(SPECIAL_FUNCTIONS["nextafter"], self, other)


binary(rules, "gcd", SPECIAL_FUNCTIONS["gcd"])
binary(rules, "lcm", SPECIAL_FUNCTIONS["lcm"])


@rules.register("polygamma")
def polygamma(n: int, self: Tensor) -> Tensor:
    """n-th derivative of digamma."""
    if n == 0:
        return elementwise(SPECIAL_FUNCTIONS["digamma"], self, to_float=True)
    if n == 1:
        return elementwise(prims.trigamma, self, to_float=True)
    factor = math.factorial(n) * (1.0 if n % 2 else -1.0)
    zeta = SPECIAL_FUNCTIONS["zeta"]
    return elementwise(lambda a: prims.mul(zeta(n + 1, a), factor), self, to_float=True)


@pointwise(rules, "mvlgamma", to_float=True)
def mvlgamma(self: Tensor, p: int) -> Tensor:
    """Multivariate log gamma: a sum of p of them."""
    terms = [prims.lgamma(prims.sub(self, k / 2)) for k in range(p)]
    return prims.add(functools.reduce(prims.add, terms), p * (p - 1) / 4 * math.log(math.pi))


@pointwise(rules, "special_entr", to_float=True)
def entr(self: Tensor) -> Tensor:
    """``-x log x``, 0 at 0, -inf below."""
    inner = prims.where(prims.eq(self, 0), 0.0, prims.mul(prims.neg(self), prims.log(self)))
    return prims.where(prims.ne(self, self), self, prims.where(prims.lt(self, 0), -INF, inner))


@pointwise(rules, "logaddexp2", to_float=True)
def logaddexp2(self: Tensor, other: Tensor) -> Tensor:
    """``log2(2 ** a + 2 ** b)``."""
    rest = prims.log1p(prims.pow(2, prims.neg(prims.abs(prims.sub(self, other)))))
    usual = prims.add(prims.maximum(self, other), prims.mul(rest, 1 / math.log(2)))
    same_infinity = prims.bitwise_and(prims.eq(self, other), prims.eq(prims.abs(self), INF))
    return prims.where(same_infinity, self, usual)


@rules.register("ldexp.Tensor")
def ldexp(self: Tensor, other: Tensor) -> Tensor:
    """``self * 2 ** other``."""
    dtype = to_float_dtype(result_dtype(self, other))
    operands = (to_dtype(x, dtype) for x in (self, other))
    return elementwise(lambda a, b: prims.mul(a, rounded(prims.pow(2, b), dtype)), *operands)


@rules.register("angle")
def angle(self: Tensor) -> Tensor:
    """pi for negative numbers, else 0; NaN stays."""
    if is_integral(self.dtype):
        found = full_like(self, 0.0, torch.get_default_dtype())
        return found if self.dtype is torch.bool else prims.where(prims.lt(self, 0), math.pi, found)

    def body(a: Tensor) -> Tensor:
        number = prims.where(prims.lt(a, 0), math.pi, full_like(a, 0))
        return prims.where(prims.ne(a, a), a, number)

    return elementwise(body, self)


@rules.register("frexp.Tensor")
def frexp(self: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissa in [0.5, 1) and exponent, read off the bits of a float32."""
    if self.dtype is torch.float64 or is_integral(self.dtype):
        return NotImplemented  # type: ignore[return-value]
    wide = to_dtype(self, torch.float32)
    scaled = prims.where(prims.lt(prims.abs(wide), 2.0**-126), prims.mul(wide, 2.0**32), wide)
    bits = prims.bitcast(scaled, dtype=torch.int32)
    biased = prims.bitwise_and(prims.shift_right(bits, 23), 0xFF)
    shift = prims.where(prims.lt(prims.abs(wide), 2.0**-126), 32, full_like(bits, 0))
    fraction = prims.bitwise_or(prims.bitwise_and(bits, -0x7F800001), 0x3F000000)
    mantissa = prims.bitcast(fraction, dtype=torch.float32)
    plain = prims.bitwise_or(prims.eq(wide, 0), prims.eq(biased, 0xFF))
    exponent = prims.where(plain, 0, prims.sub(prims.sub(biased, 126), shift))
    return to_dtype(prims.where(plain, wide, mantissa), self.dtype), exponent


@rules.register("addr")
def addr(
    self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """``beta * self + alpha * outer(vec1, vec2)``."""
    dtype = result_dtype(self, vec1, vec2)
    column = prims.reshape(vec1, shape=(vec1.shape[0], 1))
    row = prims.reshape(vec2, shape=(1, vec2.shape[0]))
    if dtype is torch.bool:
        product = prims.bitwise_and if alpha else lambda u, v: full_like(u, False)
        outer = elementwise(product, column, row)
        return elementwise(prims.bitwise_or, self, outer) if beta else outer

    def body(a: Tensor, u: Tensor, v: Tensor) -> Tensor:
        outer = prims.mul(times(u, alpha), v)
        # beta of 0 ignores NaN in self.
        return outer if is_number(beta) and beta == 0 else prims.add(times(a, beta), outer)

    return elementwise(body, self, column, row)


@rules.register("linalg_cross")
def linalg_cross(self: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Cross product of vectors of three."""
    rank = max(self.ndim, other.ndim)
    dim %= rank

    def rotated(a: Tensor, by: int) -> Tensor:
        first = prims.slice(a, dim=dim, start=by, stop=3, step=1)
        return prims.cat(first, prims.slice(a, dim=dim, start=0, stop=by, step=1), dim=dim)

    def body(a: Tensor, b: Tensor) -> Tensor:
        left, right = (prims.mul(rotated(a, i), rotated(b, 3 - i)) for i in (1, 2))
        return prims.sub(left, right)

    return elementwise(body, self, other)
