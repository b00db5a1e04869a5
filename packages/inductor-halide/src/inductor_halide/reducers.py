"""Reductions: what one keeps of the elements seen so far, as Halide expressions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import halide as hl
import torch

from . import functions
from .functions import number

State = list[hl.Expr]


class Reducer(NamedTuple):
    """``start`` is neutral in ``combine``; ``element`` is the state of a value at a position, and
    ``finish`` gives the result."""

    start: State
    element: Callable[[hl.Expr, hl.Expr], State]
    combine: Callable[[State, State], State]
    finish: Callable[[State], State]


def reducer(kind: str, dtype: torch.dtype | None, operand: torch.dtype | None) -> Reducer:
    """The reduction of a kind, to a dtype, of operands of a type. Float sums are float64."""
    wanted = functions.TYPES[dtype]
    if kind in ("argmax", "argmin"):
        return _position(kind == "argmax", functions.TYPES[operand])
    wide = hl.Float(64) if wanted.is_float() else wanted
    combine, start, kept = {
        "any": (functions.or_, number(0, wanted), wanted),
        "all": (functions.and_, number(1, wanted), wanted),
        "max": (functions.maximum, extreme(wanted, lowest=True), wanted),
        "min": (functions.minimum, extreme(wanted, lowest=False), wanted),
        "sum": (functions.add, number(0, wide), wide),
        "prod": (functions.mul, number(1, wide), wide),
    }[kind]
    return Reducer(
        [start],
        lambda value, _: [hl.cast(kept, value)],
        lambda a, b: [combine(a[0], b[0])],
        lambda state: [hl.cast(wanted, state[0])],
    )


def extreme(dtype: hl.Type, lowest: bool) -> hl.Expr:
    """The lowest or highest value."""
    if dtype.is_float():
        return number(-math.inf if lowest else math.inf, dtype)
    return dtype.min() if lowest else dtype.max()


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

    start = [extreme(operand, largest), hl.Int(32).max()]
    finish = lambda state: [hl.cast(hl.Int(64), state[1])]  # noqa: E731
    return Reducer(start, lambda value, position: [value, position], combine, finish)
