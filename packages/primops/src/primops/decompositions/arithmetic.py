"""Sums, products, quotients, powers and bit operations of two or three operands."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from primops import prims
from primops.operand import (
    Scalar,
    Tensor,
    binary,
    elementwise,
    full_like,
    is_scalar_on_cpu,
    narrowed,
    pointwise,
    to_dtype,
    wrapped,
)
from primops.promotion import is_integral, is_number, result_dtype
from primops.registry import DecompositionTable, Rule

rules = DecompositionTable()
Operand = Any  # a tensor or a number
Body = Callable[..., Tensor]
INF = float("inf")


def dtype_of(*operands: Operand) -> torch.dtype:
    """The dtype of the first tensor operand."""
    return next(x.dtype for x in operands if not is_number(x))


def times(a: Operand, factor: Scalar) -> Any:
    """``a * factor`` where either may be a number and a factor of 1 costs nothing."""
    if isinstance(factor, (int, float)) and factor == 1:
        return a
    return a * factor if is_number(a) else prims.mul(a, factor)


def _with_factor(names: str, combine: Callable[[Operand, Operand, Scalar], Tensor]) -> Rule:
    """Registers a rule whose factor ``alpha`` is rounded as the operands are."""

    @rules.register(*names.split())
    def rule(self: Operand, other: Operand, alpha: Scalar = 1) -> Tensor:
        factor = narrowed(alpha, self, other)
        return elementwise(
            lambda a, b: combine(a, b, factor), self, other, narrow=True, keeps_scalar=("cuda",)
        )

    return rule


def _sum(a: Operand, b: Operand, factor: Scalar) -> Tensor:
    """``a + factor * b``; logical or for bool."""
    if dtype_of(a, b) is torch.bool:
        return prims.bitwise_or(a, b) if factor else to_dtype(a, torch.bool)
    return prims.add(a, times(b, factor))


add = _with_factor("add.Tensor add.Scalar", _sum)
sub = _with_factor("sub.Tensor sub.Scalar", lambda a, b, factor: prims.sub(a, times(b, factor)))
_with_factor("rsub.Tensor rsub.Scalar", lambda a, b, factor: prims.sub(b, times(a, factor)))


def or_logical(prim: Body, logical: Body) -> Body:
    """``prim`` of two operands, ``logical`` where they are bool."""
    return lambda a, b: (logical if dtype_of(a, b) is torch.bool else prim)(a, b)


maximum_body = or_logical(prims.maximum, prims.bitwise_or)
minimum_body = or_logical(prims.minimum, prims.bitwise_and)
mul = binary(
    rules,
    "mul.Tensor mul.Scalar",
    or_logical(prims.mul, prims.bitwise_and),
    keeps_scalar=("cpu", "cuda"),
)


def true_quotient(a: Operand, b: Operand) -> Tensor:
    """``a / b``. On CUDA devices by a number as ATen: times its reciprocal, in a's dtype."""
    if isinstance(b, (int, float)) and a.device.type == "cuda" and a.dtype.is_floating_point:
        return prims.mul(a, _reciprocal(float(b), a.dtype))
    return prims.div(a, b)


def _reciprocal(number: float, dtype: torch.dtype) -> float:
    kind = ctypes.c_double if dtype is torch.float64 else ctypes.c_float
    divisor = kind(number).value
    return kind(1 / divisor).value if divisor else math.copysign(INF, divisor)


div = binary(
    rules, "div.Tensor div.Scalar true_divide.Tensor", true_quotient, to_float=True,
    keeps_scalar=("cpu", "cuda"),
)  # fmt: skip


@rules.register("div.Tensor_mode", "div.Scalar_mode")
def div_mode(self: Operand, other: Operand, *, rounding_mode: str | None) -> Tensor:
    """Division rounded toward zero or down; integers stay integers."""
    if rounding_mode is None:
        return div(self, other)
    dtype = None if is_number(other) or is_scalar_on_cpu(other) else result_dtype(self, other)
    quotient = floor_quotient if rounding_mode == "floor" else partial(trunc_quotient, dtype=dtype)
    return elementwise(quotient, self, other, jumps=True, keeps_scalar=("cpu", "cuda"))


def trunc_quotient(a: Operand, b: Operand, dtype: torch.dtype | None) -> Tensor:
    """``trunc(a / b)``, the quotient rounded to ``dtype`` first; exact for integers."""
    if is_integral(dtype_of(a, b)):
        return prims.floor_div(prims.sub(a, prims.fmod(a, b)), b)
    ratio = true_quotient(a, b)
    if dtype is not None:
        ratio = to_dtype(to_dtype(ratio, dtype), ratio.dtype)
    return prims.trunc(ratio)


def floor_quotient(a: Operand, b: Operand) -> Tensor:
    """``floor(a / b)`` of one dtype. For floats as eager: from the exact remainder, so that a
    quotient never rounds up.
    """
    if is_integral(dtype_of(a, b)):
        return prims.floor_div(a, b)
    if isinstance(b, (torch.SymInt, torch.SymFloat)):
        b = full_like(a, b, a.dtype)  # its sign is open
    rest = prims.fmod(a, b)
    quotient = prims.div(prims.sub(a, rest), b)
    crosses = prims.bitwise_and(prims.ne(rest, 0), prims.ne(_negative(b, rest), prims.lt(rest, 0)))
    quotient = prims.where(crosses, prims.sub(quotient, 1), quotient)
    floored = prims.floor(quotient)
    is_too_small = prims.gt(prims.sub(quotient, floored), 0.5)
    floored = prims.where(is_too_small, prims.add(floored, 1), floored)
    plain = prims.div(a, b)
    floored = prims.where(prims.ne(quotient, 0), floored, prims.mul(plain, 0.0))
    if isinstance(b, (int, float)):
        return floored if b != 0 else plain
    return prims.where(prims.eq(b, 0), plain, floored)


def _negative(a: Operand, like: Tensor) -> Any:
    """``a < 0``, as a tensor also for numbers."""
    return full_like(like, bool(a < 0), torch.bool) if is_number(a) else prims.lt(a, 0)


def integer_power(a: Tensor, exponent: int) -> Tensor:
    """``a ** exponent`` by squaring, for ``exponent >= 0``."""
    result: Tensor | None = None
    while exponent:
        if exponent & 1:
            result = a if result is None else prims.mul(result, a)
        exponent >>= 1
        if exponent:
            a = prims.mul(a, a)
    return full_like(a, 1) if result is None else result


def float_power(a: Tensor, exponent: float) -> Tensor:
    """``a ** exponent`` with the special cases of eager."""
    if exponent == 0.5:
        return prims.sqrt(a)
    if exponent == -0.5:
        return prims.rsqrt(a)
    if exponent in (0, 1, 2, 3):
        return integer_power(a, int(exponent))
    if exponent in (-1, -2):
        return prims.div(1, integer_power(a, -int(exponent)))
    return prims.pow(a, exponent)


@rules.register("pow.Tensor_Scalar")
def pow_scalar(self: Tensor, exponent: Scalar) -> Tensor:
    """A tensor to a number."""
    dtype = result_dtype(self, exponent)
    if not isinstance(exponent, (int, float)):
        if dtype.is_floating_point:
            return elementwise(prims.pow, self, exponent, narrow=True)
        return NotImplemented
    if dtype is torch.bool or (is_integral(dtype) and exponent < 0):
        return NotImplemented
    power = float_power if dtype.is_floating_point else integer_power
    # where eager takes no root: inf at -inf
    if abs(exponent) == 0.5 and dtype is torch.float16 and self.device.type == "cpu":
        power = prims.pow
    number = narrowed(exponent, self, exponent)
    return elementwise(lambda a, _: power(a, number), self, exponent)  # type: ignore[arg-type]


@rules.register("pow.Scalar", "pow.Tensor_Tensor")
def pow_tensor(self: Operand, exponent: Tensor) -> Tensor:
    """Anything to a tensor; integer powers stay an ATen call."""
    if not result_dtype(self, exponent).is_floating_point:
        return NotImplemented
    return elementwise(prims.pow, self, exponent, narrow=True)


def _number_wins(extreme: Body) -> Body:
    def body(a: Tensor, b: Tensor) -> Tensor:
        if is_integral(a.dtype):
            return extreme(a, b)
        return prims.where(prims.ne(a, a), b, prims.where(prims.ne(b, b), a, extreme(a, b)))

    return body


def sign_bit(a: Tensor) -> Tensor:
    """Whether the sign bit of a number is set, also for -0.0 and NaN."""
    if not a.dtype.is_floating_point:
        return prims.lt(a, 0)
    bits = torch.int32 if a.dtype is torch.float32 else torch.int64
    return prims.lt(prims.bitcast(a, dtype=bits), 0)


@pointwise(rules, "copysign.Tensor", "copysign.Scalar", to_float=True)
def copysign(self: Tensor, other: Operand) -> Tensor:
    """``|self|`` with the sign of ``other``."""
    negative = sign_bit(full_like(self, other) if is_number(other) else other)
    return prims.where(negative, prims.neg(prims.abs(self)), prims.abs(self))


@pointwise(rules, "hypot")
def hypot(self: Tensor, other: Tensor) -> Tensor:
    """``sqrt(a*a + b*b)``, scaled so that squares neither overflow nor vanish."""
    large = prims.maximum(prims.abs(self), prims.abs(other))
    small = prims.minimum(prims.abs(self), prims.abs(other))
    ratio = prims.div(small, large)
    scaled = prims.mul(large, prims.sqrt(prims.add(prims.mul(ratio, ratio), 1)))
    infinite = prims.bitwise_or(prims.eq(prims.abs(self), INF), prims.eq(prims.abs(other), INF))
    return prims.where(infinite, INF, prims.where(prims.eq(large, 0), large, scaled))


@pointwise(rules, "logaddexp")
def logaddexp(self: Tensor, other: Tensor) -> Tensor:
    """``log(exp(a) + exp(b))``."""
    largest = prims.maximum(self, other)
    usual = prims.add(largest, prims.log1p(prims.exp(prims.neg(prims.abs(prims.sub(self, other))))))
    same_infinity = prims.bitwise_and(prims.eq(self, other), prims.eq(prims.abs(self), INF))
    return prims.where(same_infinity, self, usual)


def _times_log(names: str, log: Body) -> None:
    """``self * log(other)``, 0 where self is 0."""

    @pointwise(rules, *names.split(), to_float=True, steps=True)
    def rule(self: Operand, other: Operand, *, step: Body) -> Tensor:
        like = other if is_number(self) else self
        a, b = (full_like(like, x) if is_number(x) else x for x in (self, other))
        product = prims.where(prims.eq(a, 0), 0.0, prims.mul(a, step(log(b))))
        return prims.where(prims.ne(b, b), float("nan"), product)


_times_log("xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self", prims.log)
_times_log("special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar", prims.log1p)


binary(
    rules,
    "floor_divide floor_divide.Scalar",
    floor_quotient,
    jumps=True,
    keeps_scalar=("cpu", "cuda"),
)
binary(
    rules,
    "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor",
    prims.remainder,
    narrow=True,
    jumps=True,
)
binary(rules, "fmod.Tensor fmod.Scalar", prims.fmod, narrow=True, jumps=True)
binary(rules, "atan2", prims.atan2, to_float=True)
binary(rules, "maximum", maximum_body)  # NaN wins here, and loses below
binary(rules, "minimum", minimum_body)
binary(rules, "fmax", _number_wins(maximum_body))
binary(rules, "fmin", _number_wins(minimum_body))
for _name in ("and", "or", "xor"):
    _variants = (
        "bitwise_{0}.Tensor bitwise_{0}.Scalar bitwise_{0}.Scalar_Tensor __{0}__.Tensor "
        "__{0}__.Scalar"
    )
    binary(rules, _variants.format(_name), getattr(prims, f"bitwise_{_name}"))
for _name in ("left", "right"):
    _variants = (
        "bitwise_{0}_shift.Tensor bitwise_{0}_shift.Tensor_Scalar bitwise_{0}_shift.Scalar_Tensor "
        "__{1}shift__.Tensor __{1}shift__.Scalar"
    )
    binary(rules, _variants.format(_name, _name[0]), getattr(prims, f"shift_{_name}"))


@rules.register("addcmul")
def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor:
    """``self + value * tensor1 * tensor2``."""
    factor = wrapped(value, result_dtype(self, tensor1, tensor2))
    return elementwise(
        lambda a, b, c: prims.add(a, prims.mul(times(b, factor), c)), self, tensor1, tensor2
    )


@pointwise(rules, "addcdiv")
def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor:
    """``self + value * tensor1 / tensor2``."""
    return prims.add(self, prims.div(times(tensor1, value), tensor2))


@pointwise(rules, "lerp.Scalar", only_floats=True)
def lerp_scalar(self: Tensor, end: Tensor, weight: Scalar) -> Tensor:
    """``self + weight * (end - self)``, written from the nearer end."""
    distance = prims.sub(end, self)
    if isinstance(weight, torch.SymFloat) or weight < 0.5:  # which end is nearer may depend on data
        return prims.add(self, times(distance, weight))
    return prims.sub(end, times(distance, 1 - weight))


@pointwise(rules, "lerp.Tensor", only_floats=True)
def lerp_tensor(self: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """``self + weight * (end - self)``, written from the nearer end."""
    distance = prims.sub(end, self)
    near = prims.add(self, prims.mul(distance, weight))
    far = prims.sub(end, prims.mul(distance, prims.sub(1, weight)))
    return prims.where(prims.lt(prims.abs(weight), 0.5), near, far)
