"""Functions of one operand, comparisons, logic, clamping and selection."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from primops import prims
from primops.decompositions.arithmetic import maximum_body, minimum_body, sign_bit
from primops.operand import (
    Scalar,
    Tensor,
    binary,
    broadcast,
    can_hold,
    elementwise,
    full_like,
    pointwise,
    select,
    to_bool,
    to_dtype,
    unary,
    widen,
    widen_exact,
    wrapped,
)
from primops.promotion import is_integral, is_number, result_dtype
from primops.registry import DecompositionTable
from primops.torch_versions import NAN_LIMIT_WINS, NEGATIVE_LIMITS_WRAP

rules = DecompositionTable()
Body = Callable[..., Tensor]

INF = float("inf")
LOG10_2 = math.log10(2.0)


def _rounding(name: str, prim: Body) -> None:
    """Rounding is the identity on integers."""
    rules.register(name)(
        lambda self: self if is_integral(self.dtype) else elementwise(prim, self, jumps=True)
    )


def _sinc(a: Tensor) -> Tensor:
    scaled = prims.mul(a, math.pi)
    return prims.where(prims.eq(a, 0), 1.0, prims.div(prims.sin(scaled), scaled))


def sigmoid_body(a: Tensor) -> Tensor:
    """``1 / (1 + exp(-a))``."""
    return prims.div(1, prims.add(prims.exp(prims.neg(a)), 1))


def _asinh(a: Tensor) -> Tensor:
    size = prims.abs(a)
    square = prims.mul(size, size)
    rest = prims.div(square, prims.add(prims.sqrt(prims.add(square, 1)), 1))
    small = prims.log1p(prims.add(size, rest))
    large = prims.add(prims.log(size), math.log(2.0))
    positive = prims.where(prims.gt(size, 1e10), large, small)
    return prims.where(sign_bit(a), prims.neg(positive), positive)


def _acosh(a: Tensor) -> Tensor:
    above = prims.sub(a, 1)
    # NaN below 1, as a whole would not be below -1
    root = prims.mul(prims.sqrt(above), prims.sqrt(prims.add(above, 2)))
    small = prims.log1p(prims.add(above, root))
    return prims.where(prims.gt(a, 1e10), prims.add(prims.log(a), math.log(2.0)), small)


def _atanh(a: Tensor) -> Tensor:
    return prims.mul(prims.sub(prims.log1p(a), prims.log1p(prims.neg(a))), 0.5)


unary(rules, "neg", prims.neg)
unary(rules, "_neg_view", prims.neg)  # kernels do not see that a tensor is negated lazily
unary(rules, "_neg_view_copy", prims.neg)
unary(rules, "sign sgn", lambda a: a if a.dtype is torch.bool else prims.sign(a), jumps=True)
unary(rules, "square", lambda a: prims.mul(a, a))
unary(rules, "frac", lambda a: prims.sub(a, prims.trunc(a)), jumps=True)
unary(rules, "bitwise_not", prims.bitwise_not)
rules.register("abs")(  # CUDA devices take bool
    lambda self: NotImplemented if self.dtype is torch.bool else elementwise(prims.abs, self)
)
for _name in ("floor", "ceil", "trunc", "round"):
    _rounding(_name, getattr(prims, _name))
_rounding("fix", prims.trunc)
_TO_FLOAT = (
    "exp expm1 log log2 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh erf lgamma"
)
for _name in _TO_FLOAT.split():
    unary(rules, _name, getattr(prims, _name), to_float=True)
unary(rules, "exp2 special_exp2", lambda a: prims.pow(2, a), to_float=True)
unary(rules, "log10", lambda a: prims.mul(prims.log2(a), LOG10_2), to_float=True)
unary(rules, "reciprocal", lambda a: prims.div(1, a), to_float=True)
unary(rules, "sigmoid", sigmoid_body, to_float=True)
unary(rules, "asinh", _asinh, to_float=True)
unary(rules, "acosh", _acosh, to_float=True)
unary(rules, "atanh", _atanh, to_float=True)
unary(rules, "sinc", _sinc, to_float=True)
unary(rules, "deg2rad", lambda a: prims.mul(a, math.pi / 180.0), to_float=True)
unary(rules, "rad2deg", lambda a: prims.mul(a, 180.0 / math.pi), to_float=True)


# Where memory must be distinct the graph's output says so.
_SAME = (
    "positive alias alias_copy detach detach_copy lift lift_fresh lift_fresh_copy contiguous clone "
    "_conj _conj_physical conj_physical"
)
rules.register(*_SAME.split())(lambda self, memory_format=None: self)


@rules.register("round.decimals")
def round_decimals(self: Tensor, *, decimals: int) -> Tensor:
    """Rounded to ``decimals`` places; negative ones round to tens, hundreds, ..."""
    if is_integral(self.dtype):
        return self
    scale = float(10 ** abs(decimals))
    up, down = (prims.mul, prims.div) if decimals >= 0 else (prims.div, prims.mul)
    return elementwise(lambda a: down(prims.round(up(a, scale)), scale), self, jumps=True)


@pointwise(rules, "logit", to_float=True, steps=True)
def logit(self: Tensor, eps: float | None = None, *, step: Body) -> Tensor:
    """``log(p / (1 - p))``, p clamped to ``[eps, 1 - eps]``, from below first, when eps is
    given.
    """
    p = self
    if eps is not None:
        below = prims.where(prims.gt(self, 1 - eps), 1 - eps, self)
        p = prims.where(prims.lt(self, eps), eps, below)
    return prims.log(step(prims.div(p, step(prims.sub(1, p)))))


# Comparisons and logic
# --------------------------------------------------------------------------------------------------


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    binary(rules, f"{_name}.Tensor {_name}.Scalar", getattr(prims, _name), narrow=True, jumps=True)


def _float_test(name: str, test: Body) -> None:
    @rules.register(name)
    def rule(self: Tensor) -> Tensor:
        if is_integral(self.dtype):
            return full_like(self, name == "isfinite", torch.bool)
        return test(widen_exact(self))


_float_test("isnan", lambda a: prims.ne(a, a))
_float_test("isinf", lambda a: prims.eq(prims.abs(a), INF))
_float_test("isfinite", lambda a: prims.lt(prims.abs(a), INF))
_float_test("isposinf", lambda a: prims.eq(a, INF))
_float_test("isneginf", lambda a: prims.eq(a, -INF))


@rules.register("signbit")
def signbit(self: Tensor) -> Tensor:
    """Whether the sign bit is set."""
    return full_like(self, False) if self.dtype is torch.bool else sign_bit(widen(self))


def _logical(name: str) -> None:
    prim = getattr(prims, f"bitwise_{name}")
    rules.register(f"logical_{name}")(
        lambda self, other: prim(*broadcast(to_bool(self), to_bool(other)))
    )


rules.register("logical_not")(lambda self: prims.bitwise_not(to_bool(self)))
for _name in ("and", "or", "xor"):
    _logical(_name)


# Clamping and selection
# --------------------------------------------------------------------------------------------------


def _lower_limit(self: Tensor, limit: Any) -> Any:
    """The lower limit, raised to 0 for unsigned integers where eager mode does not wrap it
    around.
    """
    wraps = NEGATIVE_LIMITS_WRAP or self.dtype.is_signed or self.dtype is torch.bool
    if wraps or isinstance(limit, bool) or not isinstance(limit, (int, torch.SymInt)):
        return limit
    return torch.sym_max(limit, 0)


def _can_limit(self: Tensor, *limits: Any) -> bool:
    """Whether eager mode takes the limits that are numbers."""
    dtype = result_dtype(self, *[limit for limit in limits if limit is not None])
    if dtype is torch.bool:
        return not any(map(is_number, limits))
    return can_hold(dtype, *limits)


@rules.register("clamp", "clamp.Tensor")
def clamp(self: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """``min(max(self, min), max)``; NaN in any of them wins (in torch 2.11 not that of a number
    that is the only limit).
    """
    limit, min = max if min is None else min, _lower_limit(self, min)
    if not _can_limit(self, min, max):
        return NotImplemented
    ignores_nan = not NAN_LIMIT_WINS and (min is None or max is None) and is_number(limit)

    def body(a: Tensor, *limits: Any) -> Tensor:
        clamped = a if min is None else maximum_body(a, limits[0])
        clamped = clamped if max is None else minimum_body(clamped, limits[-1])
        if ignores_nan and a.dtype.is_floating_point:
            given = full_like(a, limit)
            clamped = prims.where(prims.eq(given, given), clamped, a)
        return clamped

    return elementwise(body, self, *[limit for limit in (min, max) if limit is not None])


@rules.register("clamp_min", "clamp_min.Tensor")
def clamp_min(self: Tensor, min: Any) -> Tensor:
    min = _lower_limit(self, min)
    return elementwise(maximum_body, self, min) if _can_limit(self, min) else NotImplemented


@rules.register("clamp_max", "clamp_max.Tensor")
def clamp_max(self: Tensor, max: Any) -> Tensor:
    return elementwise(minimum_body, self, max) if _can_limit(self, max) else NotImplemented


@rules.register("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(condition: Tensor, self: Any, other: Any) -> Tensor:
    """``self`` where condition, else ``other``."""
    dtype = result_dtype(self, other)
    if not can_hold(dtype, self, other):
        return NotImplemented
    cond, a, b = broadcast(to_bool(condition), to_dtype(self, dtype), to_dtype(other, dtype))
    return select(cond, a, b, dtype)


@rules.register("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self: Tensor, mask: Tensor, value: Any) -> Tensor:
    """``value`` where mask, else ``self``."""
    if not can_hold(self.dtype, value):
        return NotImplemented
    if is_number(value) and is_integral(self.dtype):
        value = bool(value) if self.dtype is torch.bool else int(value)
    cond, a, b = broadcast(to_bool(mask), to_dtype(value, self.dtype), self)
    return prims.where(cond, a, b)


@rules.register("nan_to_num")
def nan_to_num(
    self: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN and infinities replaced, by default with 0 and the dtype's extremes."""
    if is_integral(self.dtype):
        return self
    limits = torch.finfo(self.dtype)

    def body(a: Tensor) -> Tensor:
        finite = prims.where(prims.eq(a, INF), limits.max if posinf is None else posinf, a)
        finite = prims.where(prims.eq(a, -INF), limits.min if neginf is None else neginf, finite)
        return prims.where(prims.ne(a, a), 0.0 if nan is None else nan, finite)

    return elementwise(body, self)


@rules.register("threshold")
def threshold(self: Tensor, threshold: Scalar, value: Scalar) -> Tensor:
    """``value`` where self <= threshold, else self."""
    if self.dtype is torch.bool or not can_hold(self.dtype, threshold, value):
        return NotImplemented
    limit, other = wrapped(threshold, self.dtype), wrapped(value, self.dtype)
    return elementwise(lambda a: prims.where(prims.le(a, limit), other, a), self, jumps=True)


@rules.register("heaviside")
def heaviside(self: Tensor, values: Tensor) -> Tensor:
    """0 for negative, 1 for positive, ``values`` at 0."""

    def body(a: Tensor, b: Tensor) -> Tensor:
        step = to_dtype(prims.gt(a, 0), a.dtype)
        return prims.where(prims.eq(a, 0), b, step)

    if self.dtype is torch.bool:
        return NotImplemented
    return elementwise(body, self, values, jumps=True)
