"""Index expressions as C++ over ``i64``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import sympy
from loopir import FloorDiv, Mod

from .names import identifier

Replacements = Mapping[sympy.Symbol, str]


def print_index(expr: sympy.Basic | int, replaced: Replacements | None = None) -> str:
    """C++ text of ``expr``; symbols in ``replaced`` print as given there, others as their own
    names.
    """
    return _print(sympy.sympify(expr), replaced or {})


def _print(expr: sympy.Basic, replaced: Replacements) -> str:
    if isinstance(expr, sympy.Symbol):
        return replaced.get(expr) or identifier(expr.name)
    if isinstance(expr, sympy.Integer):
        return _print_integer(int(expr))
    for kind, rule in RULES.items():
        if isinstance(expr, kind):
            return rule(expr, replaced)
    raise TypeError(f"not an index expression: {sympy.srepr(expr)}")


def _print_integer(value: int) -> str:
    text = f"{value}ll" if abs(value) >= 1 << 31 else str(value)
    return f"({text})" if value < 0 else text


def _print_sum(expr: sympy.Basic, replaced: Replacements) -> str:
    terms = sorted(expr.args, key=lambda term: (isinstance(term, sympy.Integer), str(term)))
    return "(" + " + ".join(_print(term, replaced) for term in terms) + ")"


def _print_product(expr: sympy.Basic, replaced: Replacements) -> str:
    factors = sorted(
        expr.args, key=lambda factor: (not isinstance(factor, sympy.Integer), str(factor))
    )
    if len(factors) == 2 and factors[0] == -1:
        return f"(-{_print(factors[1], replaced)})"
    # A product of 32-bit literals and symbols is 64-bit as soon as one symbol takes part, and
    # literals fold into one.
    return "*".join(_print(factor, replaced) for factor in factors)


def _is_nonnegative(expr: sympy.Basic) -> bool:
    return getattr(expr, "is_nonnegative", None) is True


def _print_division(name: str, operator: str) -> Callable[[sympy.Basic, Replacements], str]:
    def rule(expr: sympy.Basic, replaced: Replacements) -> str:
        left, right = (_print(arg, replaced) for arg in expr.args)
        if all(_is_nonnegative(arg) for arg in expr.args):
            return f"i64((u64)({left}) {operator} (u64)({right}))"
        return f"{name}({left}, {right})"

    return rule


def _print_power(expr: sympy.Basic, replaced: Replacements) -> str:
    base, exponent = expr.args
    if not (isinstance(exponent, sympy.Integer) and 0 < int(exponent) <= 16):
        raise TypeError(f"not an index expression: {expr}")
    return "*".join([f"({_print(base, replaced)})"] * int(exponent))


def _print_extreme(name: str) -> Callable[[sympy.Basic, Replacements], str]:
    def rule(expr: sympy.Basic, replaced: Replacements) -> str:
        parts = sorted(_print(arg, replaced) for arg in expr.args)
        return reduce(lambda left, right: f"{name}({left}, {right})", parts)

    return rule


RULES: dict[type, Callable[[sympy.Basic, Replacements], str]] = {
    sympy.Add: _print_sum,
    sympy.Mul: _print_product,
    sympy.Pow: _print_power,
    FloorDiv: _print_division("index_div", "/"),
    Mod: _print_division("index_mod", "%"),
    sympy.Min: _print_extreme("index_min"),
    sympy.Max: _print_extreme("index_max"),
}
