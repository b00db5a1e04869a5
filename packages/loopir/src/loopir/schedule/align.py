"""Common loops for two nests: splits the loops of both until their extents agree, and permutes one
nest where the strides of a shared buffer require it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import sympy

from loopir.ir.expr import symbol
from loopir.ir.kernel import Range
from loopir.ir.simplify import ONE, ZERO, exact_quotient

Substitution = dict[sympy.Symbol, sympy.Expr]


@dataclass(slots=True)
class Refinement:
    """The new loops, outermost first, each with the loop of the left nest that it is a part of; and
    the old symbols as expressions of the new ones.
    """

    loops: list[tuple[Range, sympy.Symbol]]
    left: Substitution
    right: Substitution


class _Side:
    """One nest, whose loops are consumed from the innermost one outwards, part by part."""

    def __init__(self, loops: Sequence[Range]) -> None:
        self.todo = list(loops)
        self.substitution: Substitution = {}
        self.step = ONE
        self.rest = ONE
        self.current: sympy.Symbol | None = None

    def next(self) -> bool:
        """Opens the next loop unless one is open; False when none is left."""
        while self.rest == 1:
            if not self.todo:
                return False
            item = self.todo.pop()
            self.current, self.rest, self.step = item.symbol, item.extent, ONE
            self.substitution[item.symbol] = ZERO
        return True

    def take(self, part: sympy.Symbol, extent: sympy.Expr, rest: sympy.Expr) -> None:
        assert self.current is not None
        self.substitution[self.current] = self.substitution[self.current] + part * self.step
        self.step = self.step * extent
        self.rest = rest


def refine(
    left: Sequence[Range], right: Sequence[Range], reduced: Container[sympy.Symbol]
) -> Refinement | None:
    """The coarsest loops from which the loops of both nests can be composed in row-major order;
    None when the sizes don't prove that there are any.

    Parts of left loops in ``reduced`` are named ``h0``, ``h1``, ..., others ``g0``, ...: similar
    groups get the same names, so that cached facts about an expression apply again.
    """
    a, b = _Side(left), _Side(right)
    loops: list[tuple[Range, sympy.Symbol]] = []
    count = {"g": 0, "h": 0}
    while True:
        more_a, more_b = a.next(), b.next()
        if not (more_a and more_b):
            break
        extent = _common(a.rest, b.rest)
        if extent is None:
            return None
        assert a.current is not None
        prefix = "h" if a.current in reduced else "g"
        part = symbol(f"{prefix}{count[prefix]}")
        count[prefix] += 1
        loops.append((Range(part, extent), a.current))
        quotients = exact_quotient(a.rest, extent), exact_quotient(b.rest, extent)
        if quotients[0] is None or quotients[1] is None:
            return None
        a.take(part, extent, quotients[0])
        b.take(part, extent, quotients[1])
    if more_a or more_b:
        return None
    return Refinement(loops[::-1], a.substitution, b.substitution)


def _common(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    if a == b:
        return a
    quotient = exact_quotient(a, b)
    if quotient is not None and quotient != 0:
        return b
    quotient = exact_quotient(b, a)
    return a if quotient is not None and quotient != 0 else None
