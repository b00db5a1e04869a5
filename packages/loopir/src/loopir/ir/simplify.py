"""Simplification of index expressions, with bounded effort, from the ranges of loop symbols and the
bounds of sizes.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import sympy

from .expr import FloorDiv, Mod, example_value, operands, substitute, symbol, symbols_of
from .kernel import Range

Extents = Mapping[sympy.Symbol, sympy.Expr]
ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


def extents_of(*nests: Iterable[Range]) -> dict[sympy.Symbol, sympy.Expr]:
    """Maps the symbols of several loop nests to their extents."""
    return {item.symbol: item.extent for nest in nests for item in nest}


def product(items: Iterable[sympy.Expr]) -> sympy.Expr:
    """The expanded product."""
    factors = tuple(items)
    if all(factor.is_Integer for factor in factors):
        return sympy.Integer(math.prod(map(int, factors)))
    result = sympy.Mul(*factors)
    return result if result.is_Integer or result.is_Symbol else sympy.expand(result)


def points_of(*nests: Iterable[Range]) -> sympy.Expr:
    """The number of points of several loop nests together."""
    return product(item.extent for nest in nests for item in nest)


def ceil_div(a: sympy.Expr, b: int) -> sympy.Expr:
    """``a / b`` rounded up."""
    quotient: sympy.Expr = FloorDiv(a + b - 1, sympy.Integer(b))  # type: ignore[assignment]
    return quotient


def flat_position(loops: Iterable[Range]) -> sympy.Expr:
    """The row-major position in ``loops``."""
    position: sympy.Expr = ZERO
    for item in loops:
        position = position * item.extent + item.symbol
    return sympy.expand(position)


@dataclass
class Facts:
    """Facts about size symbols: inclusive lower bounds, which of them may be negative, example
    values. Results are cached.
    """

    lower: dict[sympy.Symbol, int] = field(default_factory=dict)
    signed: set[sympy.Symbol] = field(default_factory=set)
    hints: dict[sympy.Symbol, int] = field(default_factory=dict)
    _simplified: dict[object, sympy.Expr] = field(default_factory=dict, repr=False)
    _nonnegative: dict[sympy.Expr, bool] = field(default_factory=dict, repr=False)

    def hint(self, expr: sympy.Expr, default: int = 64) -> int:
        """The value of a size expression in the example call (``default`` for unknown symbols)."""
        return example_value(expr, self.hints, default)

    def is_nonnegative(self, expr: sympy.Expr) -> bool:
        """Whether ``expr`` over sizes is provably >= 0 (False: unknown)."""
        if expr.is_Integer:
            return int(expr) >= 0
        if expr not in self._nonnegative:
            self._nonnegative[expr] = self._prove_nonnegative(expr)
        return self._nonnegative[expr]

    def _prove_nonnegative(self, expr: sympy.Expr) -> bool:
        shifted = {
            symbol: symbol + low
            for symbol, low in self.lower.items()
            if low and symbol in expr.free_symbols
        }
        moved = sympy.expand(expr.xreplace(shifted)) if shifted else sympy.expand(expr)
        for term in sympy.Add.make_args(moved):
            coefficient, rest = term.as_coeff_Mul()
            if coefficient < 0 or not all(
                self._is_plain_nonnegative(f) for f in sympy.Mul.make_args(rest)
            ):
                return False
        return True

    def _is_plain_nonnegative(self, factor: sympy.Expr) -> bool:
        return bool(factor.is_nonnegative) and self.signed.isdisjoint(symbols_of(factor))

    def is_dense(self, shape: Sequence[sympy.Expr], stride: Sequence[sympy.Expr]) -> bool:
        """Whether the strides are those of a contiguous tensor with its dims permuted."""
        dims = [(size, step) for size, step in zip(shape, stride, strict=True) if size != 1]
        dims.sort(key=lambda d: (self.hint(d[1]), self.hint(d[0])))
        if all(size.is_Integer and step.is_Integer for size, step in dims):
            numbers = [(int(size), int(step)) for size, step in dims]
            products = itertools.accumulate((size for size, _ in numbers), operator.mul, initial=1)
            return all(step == expected for (_, step), expected in zip(numbers, products))
        expected = ONE
        for size, step in dims:
            if sympy.expand(step - expected) != 0:
                return False
            expected = sympy.expand(expected * size)
        return True

    def is_separate(self, shape: Sequence[sympy.Expr], stride: Sequence[sympy.Expr]) -> bool:
        """Whether no two elements share an address: each stride is larger than the span of the
        smaller ones (gaps are allowed).
        """
        dims = [(size, step) for size, step in zip(shape, stride, strict=True) if size != 1]
        dims.sort(key=lambda d: (self.hint(d[1]), self.hint(d[0])))
        spanned = ONE
        for size, step in dims:
            if not self.is_nonnegative(sympy.expand(step - spanned)):
                return False
            spanned = sympy.expand(spanned + step * (size - 1))
        return True

    def upper(self, expr: sympy.Expr, extents: Extents) -> sympy.Expr | None:
        """An upper bound of ``expr`` over sizes, or None."""
        total = ZERO
        for term in sympy.Add.make_args(expr):
            bound = self._upper_term(term, extents)
            if bound is None:
                return None
            total += bound
        return total

    def _upper_term(self, term: sympy.Expr, extents: Extents) -> sympy.Expr | None:
        coefficient, rest = term.as_coeff_Mul()
        factors = sympy.Mul.make_args(rest)
        loops = [f for f in factors if f in extents or isinstance(f, FloorDiv | Mod)]
        if not loops:
            if all(self._is_plain_nonnegative(f) for f in factors) or not (
                term.free_symbols & set(extents)
            ):
                return term
            return None
        if not all(self._is_plain_nonnegative(f) or isinstance(f, FloorDiv | Mod) for f in factors):
            return None
        if coefficient < 0:
            return ZERO if all(self.is_from_zero(f, extents) for f in loops) else None
        bound = coefficient
        for factor in factors:
            top = self._upper_factor(factor, extents)
            if top is None:
                return None
            bound = bound * top
        return sympy.expand(bound)

    def _upper_factor(self, factor: sympy.Expr, extents: Extents) -> sympy.Expr | None:
        if factor in extents:
            return extents[factor] - 1  # type: ignore[index]
        if isinstance(factor, Mod):
            return operands(factor)[1] - 1
        if isinstance(factor, FloorDiv):
            numerator, divisor = operands(factor)
            top = self.upper(numerator, extents)
            if top is None or not self.is_nonnegative(divisor - 1):
                return None
            return FloorDiv(top, divisor)  # type: ignore[return-value]
        return factor

    def is_from_zero(self, expr: sympy.Expr, extents: Extents) -> bool:
        """Whether ``expr`` is provably >= 0 for every loop point."""
        for term in sympy.Add.make_args(expr):
            coefficient, rest = term.as_coeff_Mul()
            if coefficient < 0:
                return bool(not expr.free_symbols & set(extents)) and self.is_nonnegative(expr)
            for factor in sympy.Mul.make_args(rest):
                if isinstance(factor, FloorDiv):
                    if not self.is_from_zero(factor.args[0], extents):  # type: ignore[arg-type]
                        return False
                elif not isinstance(factor, Mod) and not self._is_plain_nonnegative(factor):
                    return False
        return True

    def is_below(self, expr: sympy.Expr, limit: sympy.Expr, extents: Extents) -> bool:
        """Whether ``0 <= expr < limit`` is known for every loop point."""
        if not self.is_from_zero(expr, extents):
            return False
        top = self.upper(expr, extents)
        return top is not None and self.is_nonnegative(sympy.expand(limit - 1 - top))

    def simplify(self, expr: sympy.Expr, extents: Extents) -> sympy.Expr:
        """An equal expression with as few divisions as can be proved from these facts."""
        if expr.is_Integer or expr.is_Symbol:
            return expr
        key = (
            expr,
            tuple(
                sorted(
                    ((s.name, extents[s]) for s in symbols_of(expr) if s in extents),
                    key=lambda x: x[0],
                )
            ),
        )
        known = self._simplified.get(key)
        if known is None:
            known = self._simplified[key] = self._simplify(expr, extents)
        return known

    def _simplify(self, expr: sympy.Expr, extents: Extents) -> sympy.Expr:
        if not expr.has(FloorDiv, Mod):
            return sympy.expand(expr)
        if isinstance(expr, FloorDiv | Mod):
            numerator, divisor = (self.simplify(arg, extents) for arg in expr.args)  # type: ignore[arg-type]
            return self._divide(type(expr), numerator, divisor, extents)
        rebuilt = expr.func(*(self.simplify(arg, extents) for arg in expr.args))  # type: ignore[arg-type]
        return _rejoin(sympy.expand(rebuilt))

    def _divide(self, kind: type, a: sympy.Expr, b: sympy.Expr, extents: Extents) -> sympy.Expr:
        built = kind(a, b)
        if not isinstance(built, kind) or built.args != (a, b):
            if built.args == (a, b) or not built.has(FloorDiv, Mod):
                return built
            return self.simplify(built, extents)
        if self.is_below(a, b, extents):
            return ZERO if kind is FloorDiv else a
        for g, quotient, rest in _coarse_parts(a, b):
            if self.is_below(rest, g, extents):
                inner = self.simplify(kind(quotient, sympy.expand(b / g)), extents)
                return inner if kind is FloorDiv else sympy.expand(g * inner) + rest
        return built


def _coarse_parts(
    a: sympy.Expr, b: sympy.Expr
) -> Iterable[tuple[sympy.Expr, sympy.Expr, sympy.Expr]]:
    """``(g, q, rest)`` with ``a == g*q + rest`` for factors ``g`` of ``b`` that some terms of ``a``
    share.
    """
    if not b.is_Integer:
        return
    terms = sympy.Add.make_args(a)
    seen = set()
    for term in terms:
        g = math.gcd(
            int(term.as_coeff_Mul()[0]) if term.as_coeff_Mul()[0].is_Integer else 1, int(b)
        )
        if g in seen or g <= 1:
            continue
        seen.add(g)
        whole = [t for t in terms if int(t.as_coeff_Mul()[0]) % g == 0]
        if len(whole) < len(terms):
            rest = sympy.Add(*[t for t in terms if t not in whole])
            yield sympy.Integer(g), sympy.Add(*[t / g for t in whole]), rest


def _rejoin(expr: sympy.Expr) -> sympy.Expr:
    """Replaces ``b*c*(a // b) + c*(a % b)`` by ``c*a``."""
    for mod in [node for node in expr.atoms(Mod)]:
        a, b = mod.args
        quotient = FloorDiv(a, b)
        if not isinstance(quotient, FloorDiv) or not expr.has(quotient):
            continue
        terms: list[sympy.Expr] = list(sympy.Add.make_args(expr))  # type: ignore[arg-type]
        for term in terms:
            if mod not in sympy.Mul.make_args(term):
                continue
            partner = sympy.expand(term / mod * b * quotient)
            if partner in terms:
                terms.remove(term)
                terms.remove(partner)
                return _rejoin(sympy.expand(sympy.Add(*terms) + term / mod * a))
    return expr


def linear_parts(
    expr: sympy.Expr, symbols: Iterable[sympy.Symbol]
) -> tuple[dict[sympy.Symbol, sympy.Expr], sympy.Expr] | None:
    """``(coefficients, rest)`` with ``expr == sum(c*s) + rest``, where coefficients and rest have
    none of ``symbols``; None if ``expr`` isn't affine.
    """
    parts = _linear_parts(expr, frozenset(symbols))
    return parts and (dict(parts[0]), parts[1])


@lru_cache(1 << 14)
def _linear_parts(
    expr: sympy.Expr, wanted: frozenset[sympy.Symbol]
) -> tuple[dict[sympy.Symbol, sympy.Expr], sympy.Expr] | None:
    coefficients: dict[sympy.Symbol, sympy.Expr] = {}
    rest: list[sympy.Expr] = []
    for term in sympy.Add.make_args(expr):
        used = symbols_of(term) & wanted
        if not used:
            rest.append(term)
            continue
        symbol = next(iter(used))
        factors = list(sympy.Mul.make_args(term))
        if len(used) > 1 or symbol not in factors:
            return None
        factors.remove(symbol)
        cofactor = sympy.Mul(*factors)
        if symbols_of(cofactor) & wanted:
            return None
        coefficients[symbol] = coefficients.get(symbol, ZERO) + cofactor
    return coefficients, sympy.Add(*rest)


def exact_quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    """``a / b`` if that is an integer polynomial; else None."""
    if a == b:
        return ONE
    if a.is_Integer and b.is_Integer:
        return sympy.Integer(int(a) // int(b)) if int(b) and int(a) % int(b) == 0 else None
    if b == 0:
        return None
    opaque = sorted(a.atoms(sympy.Max, sympy.Min) | b.atoms(sympy.Max, sympy.Min), key=str)
    if opaque:  # SymPy would examine them, for seconds
        names: dict[Any, Any] = {part: symbol(f"_opaque{i}") for i, part in enumerate(opaque)}
        found = exact_quotient(substitute(a, names), substitute(b, names))
        if found is None:
            return None
        return substitute(found, {name: part for part, name in names.items()})
    quotient = sympy.cancel(a / b) if a.is_Add or b.is_Add else a / b
    numerator, denominator = quotient.as_numer_denom()
    return sympy.expand(quotient) if denominator == 1 and numerator.is_integer else None
