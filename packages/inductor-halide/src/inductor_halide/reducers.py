"""Reductions: what one keeps of the elements seen so far, as Halide expressions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import halide as hl

from . import functions

NOWHERE = 2**31 - 1
State = list[hl.Expr]


class Reducer(NamedTuple):
    """``start`` is neutral in ``combine``; ``element`` is the state of a value at a position."""

    start: State
    element: Callable[[hl.Expr, hl.Expr], State]
    combine: Callable[[State, State], State]
    result: Callable[[State], hl.Expr]


def reducer(kind: str, dtype: str, operand: hl.Type) -> Reducer:
    """The reduction of a kind, to a dtype, of operands of a type. Float sums are float64."""
    wanted = functions.TYPES[dtype]
    if kind in ("argmax", "argmin"):
        return _position(kind == "argmax", operand)
    combine, start, kept = {
        "any": (functions.or_, 0, wanted),
        "all": (functions.and_, 1, wanted),
        "max": (functions.maximum, extreme(wanted, lowest=True), wanted),
        "min": (functions.minimum, extreme(wanted, lowest=False), wanted),
        "sum": (functions.add, 0, hl.Float(64) if wanted.is_float() else wanted),
        "prod": (functions.mul, 1, hl.Float(64) if wanted.is_float() else wanted),
    }[kind]
    return Reducer(
        [number(start, kept)],
        lambda value, _: [hl.cast(kept, value)],
        lambda a, b: [combine(a[0], b[0])],
        lambda state: hl.cast(wanted, state[0]),
    )


def extreme(dtype: hl.Type, lowest: bool) -> float | int:
    """The lowest or highest value."""
    if dtype.is_float():
        return -math.inf if lowest else math.inf
    largest = (1 << (dtype.bits() - dtype.is_int())) - 1
    return largest if not lowest else -largest - 1 if dtype.is_int() else 0


def number(value: float | int, dtype: hl.Type) -> hl.Expr:
    """A constant of a type."""
    return hl.cast(dtype, hl.f64(value) if dtype.is_float() else hl.i64(int(value)))


def _position(largest: bool, operand: hl.Type) -> Reducer:
    """The best element and its position; the first of equal ones, and NaN is better than all."""

    def combine(a: State, b: State) -> State:
        better = a[0] < b[0] if largest else b[0] < a[0]
        equal = a[0] == b[0]
        if operand.is_float():
            a_nan, b_nan = hl.is_nan(a[0]), hl.is_nan(b[0])
            better = (better | b_nan) & hl.logical_not(a_nan)
            equal = equal | (a_nan & b_nan)
        better = better | (equal & (b[1] < a[1]))
        return [hl.select(better, new, old) for new, old in zip(b, a, strict=True)]

    start = [number(extreme(operand, largest), operand), hl.Expr(NOWHERE)]
    result = lambda state: hl.cast(hl.Int(64), state[1])  # noqa: E731
    return Reducer(start, lambda value, position: [value, position], combine, result)
