"""Reductions: what one keeps of the elements seen so far, as Halide expressions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import halide as hl

from . import functions

NOWHERE = 2**31 - 1
State = list[hl.Expr]


@dataclass(frozen=True, slots=True)
class Reducer:
    """``element`` is the state of one element at a position; ``combine`` is associative, and
    commutative but for rounding; ``start`` is neutral in it.
    """

    start: Callable[[], State]
    element: Callable[[hl.Expr, hl.Expr], State]
    combine: Callable[[State, State], State]
    result: Callable[[State], hl.Expr]


def reducer(kind: str, dtype: str, operand: hl.Type) -> Reducer:
    """The reduction of a kind, to a dtype, of operands of a type."""
    if kind in ("argmax", "argmin"):
        return _position(kind, operand)
    if kind in ("any", "all"):
        combine = functions.or_ if kind == "any" else functions.and_
        return _folded(combine, kind == "all", hl.Bool(), hl.Bool())
    wanted = functions.TYPES[dtype]
    if kind in ("max", "min"):
        combine = functions.maximum if kind == "max" else functions.minimum
        return _folded(combine, extreme(wanted, kind == "max"), wanted, wanted)
    combine = functions.add if kind == "sum" else functions.mul
    kept = hl.Float(64) if wanted.is_float() else wanted
    return _folded(combine, 0 if kind == "sum" else 1, kept, wanted)


def extreme(dtype: hl.Type, lowest: bool) -> float | int:
    """The lowest or highest value."""
    if dtype.is_float():
        return -math.inf if lowest else math.inf
    bits, signed = dtype.bits(), dtype.is_int()
    if lowest:
        return -(1 << (bits - 1)) if signed else 0
    return (1 << (bits - signed)) - 1


def number(value: float | int, dtype: hl.Type) -> hl.Expr:
    """A constant of a type."""
    return hl.cast(dtype, hl.f64(value) if dtype.is_float() else hl.i64(int(value)))


def _folded(
    combine: Callable[[hl.Expr, hl.Expr], hl.Expr],
    start: float | int,
    kept: hl.Type,
    wanted: hl.Type,
) -> Reducer:
    return Reducer(
        lambda: [number(start, kept)],
        lambda value, _: [hl.cast(kept, value)],
        lambda a, b: [combine(a[0], b[0])],
        lambda state: hl.cast(wanted, state[0]),
    )


def _position(kind: str, operand: hl.Type) -> Reducer:
    """The best element and its position; the first of equal ones, and NaN is better than all."""
    largest = kind == "argmax"

    def combine(a: State, b: State) -> State:
        better = a[0] < b[0] if largest else b[0] < a[0]
        equal = a[0] == b[0]
        if operand.is_float():
            a_nan, b_nan = hl.is_nan(a[0]), hl.is_nan(b[0])
            better = (better | b_nan) & hl.logical_not(a_nan)
            equal = equal | (a_nan & b_nan)
        better = better | (equal & (b[1] < a[1]))
        return [hl.select(better, new, old) for new, old in zip(b, a, strict=True)]

    return Reducer(
        lambda: [number(extreme(operand, largest), operand), hl.Expr(NOWHERE)],
        lambda value, position: [value, position],
        combine,
        lambda state: hl.cast(hl.Int(64), state[1]),
    )
