"""Loop order, dimension collapse and the axis to vectorise: all by the strides of a kernel's
accesses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from loopir.ir.expr import substitute, symbol
from loopir.ir.kernel import Instruction, Range
from loopir.ir.simplify import ONE, ZERO, Facts, linear_parts, product

from .align import Substitution


@dataclass(frozen=True, slots=True)
class LoopAccess:
    """An index expression of a kernel. ``kind``: load, store or index_expr; ``weight``: larger for
    stores and inner bodies.
    """

    index: sympy.Expr
    kind: str
    weight: int


def loop_accesses(instructions: Sequence[Instruction], inner: bool) -> list[LoopAccess]:
    """The index expressions of a program."""
    found = []
    for step in instructions:
        if step.op in ("load", "store", "index_expr"):
            index = step.args[0] if step.op == "index_expr" else step.args[1]
            weight = (2 if step.op == "store" else 1) * (4 if inner else 1)
            found.append(LoopAccess(index, step.op, weight))  # type: ignore[arg-type]
    return found


def order_loops(
    loops: Sequence[Range], accesses: Sequence[LoopAccess], facts: Facts
) -> list[Range]:
    """Puts the largest strides outermost, by the weighted mean of their logarithms; the sort is
    stable.
    """
    symbols = [item.symbol for item in loops]
    score = dict.fromkeys(symbols, 0.0)
    count = dict.fromkeys(symbols, 0)
    for access in accesses:
        parts = linear_parts(access.index, symbols) if access.kind != "index_expr" else None
        if parts is None:
            continue
        for loop, coefficient in parts[0].items():
            stride = (
                abs(facts.hint(coefficient))
                if not coefficient.free_symbols - set(facts.hints)
                else 1
            )
            if stride:
                score[loop] += access.weight * math.log2(stride)
                count[loop] += access.weight
    return sorted(
        loops,
        key=lambda item: (
            -(score[item.symbol] / count[item.symbol]) if count[item.symbol] else -64.0
        ),
    )


def collapse(
    loops: Sequence[Range], accesses: Sequence[LoopAccess], prefix: str
) -> tuple[list[Range], Substitution]:
    """Merges neighbouring loops that every access steps through as one loop; returns the final
    loops, and the old symbols as expressions of the new ones.
    """
    exprs = list(dict.fromkeys(access.index for access in accesses))
    substitution: Substitution = {}
    result: list[Range] = []
    for item in loops:
        if item.extent == ONE:
            substitution[item.symbol] = ZERO
            continue
        if result and _mergeable(result[-1], item, exprs):
            outer = result.pop()
            exprs = [substitute(expr, {outer.symbol: ZERO}) for expr in exprs]
            substitution[outer.symbol] = ZERO
            result.append(Range(item.symbol, product((outer.extent, item.extent))))
        else:
            result.append(item)
    final = [Range(symbol(f"{prefix}{i}"), item.extent) for i, item in enumerate(result)]
    for old, new in zip(result, final, strict=True):
        substitution[old.symbol] = new.symbol
    return final, substitution


def _mergeable(outer: Range, inner: Range, exprs: Sequence[sympy.Expr]) -> bool:
    pair = (outer.symbol, inner.symbol)
    for expr in exprs:
        if not expr.free_symbols & set(pair):
            continue
        parts = linear_parts(expr, pair)
        if parts is None:
            return False
        a, b = parts[0].get(outer.symbol, ZERO), parts[0].get(inner.symbol, ZERO)
        if sympy.expand(a - b * inner.extent) != 0:
            return False
    return True


def vector_axis(
    ranges: Sequence[Range],
    reduction: Sequence[Range],
    accesses: Sequence[LoopAccess],
    is_scan: bool,
) -> sympy.Symbol | None:
    """The innermost loop (of ``ranges`` or ``reduction``) with the most unit-stride accesses; None
    when there is none.
    """
    candidates = [nest[-1].symbol for nest in (() if is_scan else reduction, ranges) if nest]
    best, best_score = None, 0
    for candidate in candidates:
        score = _unit_score(candidate, accesses)
        if score is not None and (best is None or score > best_score):
            best, best_score = candidate, score
    if best is None and candidates and not any(access.kind != "index_expr" for access in accesses):
        return candidates[0]
    return best


def _unit_score(candidate: sympy.Symbol, accesses: Sequence[LoopAccess]) -> int | None:
    score, has_unit = 0, False
    for access in accesses:
        if access.kind == "index_expr" or candidate not in access.index.free_symbols:
            continue
        parts = linear_parts(access.index, (candidate,))
        is_unit = parts is not None and parts[0].get(candidate) == ONE
        has_unit |= is_unit
        score += access.weight if is_unit else -access.weight
    return score if has_unit else None


def tile_axis(
    ranges: Sequence[Range], vector: sympy.Symbol | None, accesses: Sequence[LoopAccess]
) -> sympy.Symbol | None:
    """The range with the most accesses that have stride 1 along it and a larger one along
    ``vector``.
    """
    symbols = [item.symbol for item in ranges]
    votes: Counter[sympy.Symbol] = Counter()
    for index in (
        dict.fromkeys(access.index for access in accesses if access.kind != "index_expr")
        if vector in symbols
        else ()
    ):
        parts = linear_parts(index, symbols)
        if parts is not None and parts[0].get(vector, ZERO) not in (ZERO, ONE):  # type: ignore[arg-type]
            votes.update(s for s in symbols if s != vector and parts[0].get(s) == ONE)
    return votes.most_common(1)[0][0] if votes else None
