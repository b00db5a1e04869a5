"""Index expressions: merging loops, strides, bounds, and their text in Triton."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import sympy
from loopir import FloorDiv, Instruction, Interval, Kernel, Mod, Range, bound, map_steps

INDEXED = {
    "load": 1, "store": 1, "index_expr": 0, "eq_place": 0, "uniform_at": 1, "uniform16_at": 1,
    "uniform_below": 1, "uniform_above": 1, "uniform16_below": 1, "uniform16_above": 1,
}  # fmt: skip
"""Operations with an index expression, and its position in ``args``."""


def index_of(step: Instruction) -> sympy.Expr | None:
    """The index expression of an instruction that has one."""
    position = INDEXED.get(step.op)
    return None if position is None else sympy.sympify(step.args[position])  # type: ignore[return-value]


def map_index(change: Callable[[Any], Any], step: Instruction) -> Instruction:
    """``step`` with ``change`` applied to its index expression, if it has one."""
    position = INDEXED.get(step.op)
    if position is None:
        return step
    args = list(step.args)
    args[position] = change(index_of(step))
    return replace(step, args=tuple(args))


def indices(steps: Iterable[Instruction]) -> Iterator[sympy.Expr]:
    """All index expressions of ``steps``, in order."""
    return (expr for expr in map(index_of, steps) if expr is not None)


def stride(expr: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
    """The coefficient of ``symbol`` in ``expr``; None where ``expr`` is not affine in it."""
    terms = sympy.Add.make_args(expr)
    if all(
        term.is_Symbol or term.is_Integer or (len(term.args) == 2 and term.args[0].is_Integer)
        for term in terms
    ):
        found = [
            term for term in terms if term == symbol or (term.is_Mul and term.args[1] == symbol)
        ]
        if all(term in found or symbol not in term.free_symbols for term in terms):
            return sympy.Add(*(term.coeff(symbol) for term in found))  # type: ignore[arg-type]
    if symbol not in expr.free_symbols:
        return sympy.Integer(0)
    expanded = sympy.expand(expr)
    coefficient = expanded.coeff(symbol, 1)
    rest = expanded - coefficient * symbol
    if symbol in rest.free_symbols or symbol in coefficient.free_symbols:  # type: ignore[union-attr]
        return None
    return coefficient


def merge_loops(kernel: Kernel) -> Kernel:
    """``kernel`` with adjacent loops merged wherever every index is a function of their flat
    position.
    """
    changed = True
    while changed:
        changed = False
        for loops in (kernel.ranges, kernel.reduction):
            pair = _mergeable(loops, list(indices(kernel.steps)))
            if pair is not None:
                kernel = joined(kernel, *pair)
                changed = True
                break
    return kernel


def _mergeable(
    loops: tuple[Range, ...], expressions: list[sympy.Expr]
) -> tuple[Range, Range] | None:
    for outer, inner in itertools.pairwise(loops):
        if all(_is_flat(expr, outer, inner) for expr in expressions):
            return outer, inner
    return None


def _is_flat(expr: sympy.Expr, outer: Range, inner: Range) -> bool:
    if not expr.free_symbols & {outer.symbol, inner.symbol}:
        return True
    outer_stride, inner_stride = stride(expr, outer.symbol), stride(expr, inner.symbol)
    if outer_stride is None or inner_stride is None:
        return False
    if outer_stride.free_symbols & {inner.symbol}:
        return False
    return sympy.expand(outer_stride - inner_stride * inner.extent) == 0


def joined(kernel: Kernel, outer: Range, inner: Range) -> Kernel:
    """``kernel`` with two adjacent loops merged into one, which takes the inner one's symbol and
    position.
    """
    flat = Range(inner.symbol, sympy.expand(outer.extent * inner.extent))
    if outer.extent == 1:
        parts: dict[Any, Any] = {outer.symbol: sympy.Integer(0)}
    elif inner.extent == 1:
        parts = {outer.symbol: inner.symbol, inner.symbol: sympy.Integer(0)}
    else:
        parts = {
            outer.symbol: FloorDiv(inner.symbol, inner.extent),
            inner.symbol: Mod(inner.symbol, inner.extent),
        }

    def loops(items: tuple[Range, ...]) -> tuple[Range, ...]:
        return tuple(flat if item is inner else item for item in items if item is not outer)

    def moved(expr: sympy.Expr) -> sympy.Basic:
        is_flat = _is_flat(expr, outer, inner)
        return expr.subs(outer.symbol, 0) if is_flat else expr.xreplace(parts)

    bodies = map_steps(partial(map_index, moved), kernel.bodies)
    return replace(
        kernel, ranges=loops(kernel.ranges), reduction=loops(kernel.reduction), bodies=bodies
    )


Bounds = Mapping[sympy.Symbol, Interval]


def bounds(expr: sympy.Expr, known: Bounds) -> Interval:
    """An interval that contains ``expr``; unknown symbols are taken to be non-negative and
    unbounded.
    """
    return bound(expr, lambda symbol: known.get(symbol, Interval(0)))


def integer(expr: sympy.Expr | int) -> int | None:
    """The value of a constant expression, else None."""
    value = sympy.sympify(expr)
    return int(value) if isinstance(value, sympy.Integer) else None
