"""Bounds of integer values, from the instructions that compute them: an index that is clamped to a
dimension needs no check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from loopir import Instruction, Interval, Value

from .indexing import Bounds, bounds, index_of, integer

ANYTHING = Interval(-math.inf, math.inf)


def _negated(a: Interval) -> Interval:
    return Interval(-a.hi, -a.lo)


def _smaller(a: Interval, b: Interval) -> Interval:
    return Interval(min(a.lo, b.lo), min(a.hi, b.hi))


def _larger(a: Interval, b: Interval) -> Interval:
    return Interval(max(a.lo, b.lo), max(a.hi, b.hi))


def _either(a: Interval, b: Interval) -> Interval:
    return Interval(min(a.lo, b.lo), max(a.hi, b.hi))


def _absolute(a: Interval) -> Interval:
    ends = abs(a.lo), abs(a.hi)
    return Interval(0 if 0 in a else min(ends), max(ends))


RULES: dict[str, Callable[..., Interval]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a + _negated(b),
    "mul": lambda a, b: a * b,
    "neg": _negated,
    "abs": _absolute,
    "minimum": _smaller,
    "maximum": _larger,
    "where": lambda condition, a, b: _either(a, b),
    "cast": lambda a: a,
}


def proven_indices(steps: Iterable[Instruction], known: Bounds) -> frozenset[str]:
    """The results of ``indirect`` whose index is within its dimension at every point, whatever is
    in memory. ``known``: the ranges of the loop symbols.
    """
    found: dict[str, Interval] = {}
    proven: set[str] = set()
    for step in steps:
        if step.op == "indirect" and _is_inside(step, found):
            proven.add(str(step.result))
        if step.result is not None:
            found[step.result] = _bounds_of(step, found, known)
    return frozenset(proven)


def _is_inside(step: Instruction, found: dict[str, Interval]) -> bool:
    size = integer(step.args[1])  # type: ignore[arg-type]
    value = found.get(str(step.args[0]), ANYTHING)
    return size is not None and value.lo >= 0 and value.hi < size


def _bounds_of(step: Instruction, found: dict[str, Interval], known: Bounds) -> Interval:
    dtype = step.dtype
    if dtype is None or dtype is torch.bool or dtype.is_floating_point or dtype.is_complex:
        return ANYTHING
    if step.op == "constant":
        return Interval(int(step.args[0]), int(step.args[0]))  # type: ignore[call-overload]
    if step.op == "index_expr":
        index = index_of(step)
        if index is None or not set(known).issuperset(index.free_symbols):
            return _limits(dtype)
        return _held(bounds(index, known), dtype)
    rule = RULES.get(step.op)
    operands = [_operand(arg, found) for arg in step.args]
    if rule is None or (step.op == "cast" and str(step.args[0]) not in found):
        return _limits(dtype)
    return _held(rule(*operands), dtype)


def _operand(arg: object, found: dict[str, Interval]) -> Interval:
    return found.get(str(arg), ANYTHING) if isinstance(arg, Value) else ANYTHING


def _limits(dtype: torch.dtype) -> Interval:
    info = torch.iinfo(dtype)
    return Interval(info.min, info.max)


def _held(value: Interval, dtype: torch.dtype) -> Interval:
    """``value`` if the type holds all of it; beyond, integers wrap around."""
    limits = _limits(dtype)
    inside = limits.lo <= value.lo and value.hi <= limits.hi
    return value if inside else limits
