"""Index expressions as source text: Triton's for kernels, Python's for the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

import sympy
from loopir import FloorDiv, Mod

from .indexing import Bounds, bounds

SUM, FACTOR, OPERAND = range(3)
"""Binding strength of the context in which an expression is printed."""


def host_text(expr: sympy.Expr | int) -> str:
    """``expr`` as a Python expression over the size symbols."""
    return _HostPrinter().show(sympy.sympify(expr))


@dataclass
class IndexPrinter:
    """Prints for Triton, whose ``//`` and ``%`` truncate. Where the dividend may be negative, given
    the bounds ``known`` of the symbols, the device functions ``floordiv_int`` and ``remainder_int``
    replace them.
    """

    known: Bounds = field(default_factory=dict)
    name: Callable[[sympy.Symbol], str] = str

    def show(self, expr: sympy.Basic, place: int = SUM) -> str:
        """The text of ``expr``, in parentheses where its context ``place`` needs them."""
        if isinstance(expr, sympy.Symbol):
            return self.name(expr)
        if isinstance(expr, sympy.Integer):
            return str(expr) if expr >= 0 or place == SUM else f"({expr})"
        if isinstance(expr, sympy.Add):
            return _wrap(self._sum(expr), place > SUM)
        if isinstance(expr, sympy.Mul):
            return self._product(expr, place)
        if isinstance(expr, FloorDiv):
            return self.division(expr, "//", "floordiv_int")
        if isinstance(expr, Mod):
            return self.division(expr, "%", "remainder_int")
        if isinstance(expr, sympy.Min | sympy.Max):
            pieces = sorted(self.show(arg) for arg in expr.args)
            return reduce(lambda a, b: self.extreme(isinstance(expr, sympy.Max), a, b), pieces)
        if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
            return "(" + " * ".join([self.show(expr.base, OPERAND)] * int(expr.exp)) + ")"
        raise TypeError(f"not an index expression: {sympy.srepr(expr)}")

    def division(self, expr: sympy.Basic, sign: str, function: str) -> str:
        """A quotient or remainder."""
        dividend, divisor = expr.args
        if bounds(dividend, self.known).lo < 0:  # type: ignore[arg-type]
            return f"{function}({self.show(dividend)}, {self.show(divisor)})"
        return f"({self.show(dividend, OPERAND)} {sign} {self.show(divisor, OPERAND)})"

    def extreme(self, largest: bool, a: str, b: str) -> str:
        """The larger or smaller of two texts."""
        return f"tl.{'maximum' if largest else 'minimum'}({a}, {b})"

    def _sum(self, expr: sympy.Add) -> str:
        terms = sorted(expr.args, key=lambda term: (isinstance(term, sympy.Integer), str(term)))
        return " + ".join(map(self.show, terms)).replace("+ -", "- ")

    def _product(self, expr: sympy.Mul, place: int) -> str:
        coefficient, rest = expr.as_coeff_mul()
        if not isinstance(coefficient, sympy.Integer):
            raise TypeError(f"not an index expression: {expr}")
        pieces = [self.show(factor, OPERAND) for factor in sorted(rest, key=str)]
        if coefficient != 1 and coefficient != -1:
            pieces.insert(0, str(coefficient))
        sign = "-" if coefficient == -1 else ""
        return _wrap(
            sign + " * ".join(pieces), place == OPERAND or (coefficient < 0 and place > SUM)
        )


class _HostPrinter(IndexPrinter):
    def division(self, expr: sympy.Basic, sign: str, function: str) -> str:
        dividend, divisor = expr.args
        return f"({self.show(dividend, OPERAND)} {sign} {self.show(divisor, OPERAND)})"

    def extreme(self, largest: bool, a: str, b: str) -> str:
        return f"{'max' if largest else 'min'}({a}, {b})"


def _wrap(text: str, needed: bool) -> str:
    return f"({text})" if needed else text
