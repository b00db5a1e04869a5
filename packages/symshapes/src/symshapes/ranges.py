"""Interval bounds of size expressions: sound, one pass, no search."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import sympy

from .expr import Ceil, Floor, FloorDiv, Mod, Round, ToFloat, TrueDiv, Trunc, number

INF = math.inf
Number = int | float


@dataclass(frozen=True, slots=True)
class Interval:
    """All numbers ``lo <= x <= hi``; ends may be infinite. Integer ends are exact Python ints."""

    lo: Number = -INF
    hi: Number = INF

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lo + other.lo, self.hi + other.hi)

    def __mul__(self, other: Interval) -> Interval:
        ends = [_times(a, b) for a in (self.lo, self.hi) for b in (other.lo, other.hi)]
        return Interval(min(ends), max(ends))

    def __contains__(self, value: Number) -> bool:
        return self.lo <= value <= self.hi

    def __and__(self, other: Interval) -> Interval:
        return Interval(max(self.lo, other.lo), min(self.hi, other.hi))

    @classmethod
    def between(cls, lower: Number | None, upper: Number | None) -> Interval:
        """The interval with these ends, where None is infinite."""
        return cls(-INF if lower is None else lower, INF if upper is None else upper)

    def map(self, function: Callable[[Number], Number]) -> Interval:
        """The image under a function that never decreases."""
        return Interval(*(x if x in (INF, -INF) else function(x) for x in (self.lo, self.hi)))


TOP = Interval()


def _times(a: Number, b: Number) -> Number:
    return 0 if a == 0 or b == 0 else a * b


def _quotient(a: Interval, b: Interval, divide: Callable[[Number, Number], Number]) -> Interval:
    if b.lo <= 0 <= b.hi:
        return TOP
    ends = [_divide_end(x, y, divide) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return Interval(min(ends), max(ends))


def _divide_end(x: Number, y: Number, divide: Callable[[Number, Number], Number]) -> Number:
    if y in (INF, -INF):
        # the limit of x / y; floor of a small negative number is -1
        return 0 if x == 0 or (x > 0) == (y > 0) else -1
    if x in (INF, -INF):
        return x if y > 0 else -x
    return divide(x, y)


def _floor_quotient(a: Interval, b: Interval) -> Interval:
    return _quotient(a, _nonzero(b), lambda x, y: x // y)


def _nonzero(divisor: Interval) -> Interval:
    """The integers that divide: 0 raises an error."""
    return Interval(divisor.lo or 1, divisor.hi or -1) if divisor != Interval(0, 0) else divisor


def _modulo(a: Interval, b: Interval) -> Interval:
    b = _nonzero(b)
    if b.lo > 0:
        if a.lo >= 0 and a.hi < b.lo:
            return a
        high = b.hi - 1
        return Interval(0, min(high, a.hi) if a.lo >= 0 else high)
    if b.hi < 0:
        return Interval(b.lo + 1, 0)
    return TOP


def _power(base: Interval, exponent: Any) -> Interval:
    if not exponent.is_Integer or int(exponent) < 0:
        return TOP
    n = int(exponent)
    if n % 2 == 0:
        base = _absolute(base)
    elif base.lo < 0 and (base.lo == -INF or base.hi == INF):
        return TOP
    return base.map(lambda x: x**n)


def bound(expr: Any, symbol_bound: Callable[[sympy.Symbol], Interval]) -> Interval:
    """Bounds of a numeric expression, where ``symbol_bound`` gives those of a symbol. Unknown
    functions are unbounded.
    """
    if expr.is_Symbol:
        return symbol_bound(expr)
    if expr.is_Integer or expr.is_Float or expr.is_Rational:
        n = number(expr)
        return Interval(n, n)
    rule = _RULES.get(expr.func)
    if rule is None:
        return TOP
    if expr.func is sympy.Pow:
        return _power(bound(expr.base, symbol_bound), expr.exp)
    result = rule(*[bound(a, symbol_bound) for a in expr.args])
    if result.lo != result.lo or result.hi != result.hi:  # inf - inf
        return TOP
    return result


def _absolute(a: Interval) -> Interval:
    if a.lo >= 0:
        return a
    high = max(abs(a.lo), abs(a.hi))
    return Interval(0 if 0 in a else min(abs(a.lo), abs(a.hi)), high)


_RULES: dict[Any, Callable[..., Interval]] = {
    sympy.Add: lambda *parts: reduce(operator.add, parts),
    sympy.Mul: lambda *parts: reduce(operator.mul, parts),
    sympy.Pow: _power,
    sympy.Max: lambda *p: Interval(max(i.lo for i in p), max(i.hi for i in p)),
    sympy.Min: lambda *p: Interval(min(i.lo for i in p), min(i.hi for i in p)),
    sympy.Abs: _absolute,
    FloorDiv: _floor_quotient,
    TrueDiv: lambda a, b: _quotient(a, b, lambda x, y: x / y),
    Mod: _modulo,
    ToFloat: lambda a: a,
    Trunc: lambda a: a.map(math.trunc),
    Floor: lambda a: a.map(math.floor),
    Ceil: lambda a: a.map(math.ceil),
    Round: lambda a: a.map(round),
}
