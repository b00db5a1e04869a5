"""Decides size predicates for all admissible sizes, without search.

Over integers every relation is a question about the sign of a difference ``d``. A lower bound of
``d`` comes from shifting each symbol to its lower bound and reading the signs of the coefficients,
from interval arithmetic, and from facts ``f >= 0`` for which ``d - f`` is bounded below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import sympy
from sympy import Integer, S

from .environment import Environment
from .expr import FloorDiv, Mod, number
from .ranges import INF, Interval, bound

_MAX_TERMS = 64
_MAX_FACTS = 16


def decide_statically(env: Environment, expr: Any, oblivious: bool) -> bool | None:
    """True or False if ``expr`` has that value for all admissible sizes, None if it is open."""
    if expr is S.true or expr is S.false:
        return expr is S.true
    if env.is_recorded(expr):
        return True
    if isinstance(expr, (sympy.And, sympy.Or)):
        absorbing = isinstance(expr, sympy.Or)
        answers = [env.statically_known(a, oblivious=oblivious) for a in expr.args]
        if absorbing in answers:
            return absorbing
        return None if None in answers else not absorbing
    if isinstance(expr, sympy.Not):
        answer = env.statically_known(expr.args[0], oblivious=oblivious)
        return None if answer is None else not answer
    if not isinstance(expr, sympy.core.relational.Relational):
        return None
    if env.is_recorded(expr.negated):
        return False
    return _relation(env, expr, oblivious)


def _relation(env: Environment, expr: Any, oblivious: bool) -> bool | None:
    difference = expr.lhs - expr.rhs
    if difference == 0:
        return isinstance(expr, (sympy.Eq, sympy.Ge, sympy.Le))
    low, high = difference_bounds(env, _primitive(difference), oblivious)
    if isinstance(expr, (sympy.Eq, sympy.Ne)):
        unequal = low > 0 or high < 0
        equal = low == high == 0
        if not (unequal or equal):
            return None
        return equal == isinstance(expr, sympy.Eq)
    if isinstance(expr, (sympy.Lt, sympy.Le)):
        low, high = -high, -low
    if isinstance(expr, (sympy.Gt, sympy.Lt)):
        return True if low > 0 else False if high <= 0 else None
    return True if low >= 0 else False if high < 0 else None


def _primitive(expr: Any) -> Any:
    """``expr`` over the positive integer gcd of its terms, which has the same sign."""
    terms = sympy.Add.make_args(expr)
    coefficients = [term.as_coeff_Mul()[0] for term in terms]
    if not all(coefficient.is_Integer for coefficient in coefficients):
        return expr
    factor = math.gcd(*map(int, coefficients))
    return expr if factor <= 1 else sympy.Add(*[t / factor for t in terms])


def difference_bounds(env: Environment, difference: Any, oblivious: bool) -> tuple[float, float]:
    """Sound bounds of a numeric expression, tighter than interval arithmetic alone."""

    def interval(symbol: sympy.Symbol) -> Interval:
        known = env.symbol_interval(symbol)
        if oblivious and symbol in env.unbacked:
            return Interval(max(known.lo, 2), max(known.hi, 2))
        return known

    plain = bound(difference, interval)
    low = max(plain.lo, _coefficient_bound(difference, interval))
    high = min(plain.hi, -_coefficient_bound(-difference, interval))
    if low <= 0 <= high:
        low = max(low, _fact_bound(env, difference, interval))
        high = min(high, -_fact_bound(env, -difference, interval))
    return low, high


def _coefficient_bound(expr: Any, interval: Any) -> float:
    """The constant term after each atom is shifted to its lower bound, if no other is negative."""
    shifted = _shift(expr, interval)
    if shifted is None:
        return -INF
    constant_term: Any = S.Zero
    for monomial, coefficient in shifted.as_coefficients_dict().items():
        if monomial == 1:
            constant_term = coefficient
        elif coefficient < 0 or not monomial.is_nonnegative:
            return -INF
    return number(constant_term)


def _shift(expr: Any, interval: Any) -> Any:
    """``expr`` expanded over fresh nonnegative symbols; None if too large or no polynomial."""
    expr = sympy.sympify(expr)
    atoms = _atoms(expr)
    if atoms is None or len(atoms) > _MAX_TERMS:
        return None
    replacement = {}
    for i, atom in enumerate(sorted(atoms, key=str)):
        limits = bound(atom, interval)
        # a stable name, not a Dummy: Dummies defeat SymPy's caches
        slack = sympy.Symbol(f"_{i}", integer=bool(atom.is_integer), nonnegative=True)
        if limits.lo > -INF:
            replacement[atom] = slack + limits.lo
        elif limits.hi < INF:
            replacement[atom] = limits.hi - slack
    if len(sympy.Add.make_args(expr)) * 2 ** len(replacement) > 4096:
        return None
    return sympy.expand(expr.xreplace(replacement))


def _atoms(expr: Any) -> set[Any] | None:
    """The maximal subexpressions that are not sums, products or natural powers."""
    if expr.is_Symbol:
        return {expr}
    if expr.is_Number:
        return set()
    if expr.is_Add or expr.is_Mul:
        parts = [_atoms(part) for part in expr.args]
        return None if None in parts else set().union(*parts)  # type: ignore[arg-type]
    if expr.is_Pow and expr.exp.is_Integer and 0 < expr.exp <= 4:
        return _atoms(expr.base)
    return {expr} if isinstance(expr, sympy.Function) or expr.is_Function else None


def _fact_bound(env: Environment, expr: Any, interval: Any) -> float:
    """The best lower bound of ``expr - f`` over recorded facts ``f >= 0``."""
    symbols = expr.free_symbols
    best: float = -INF
    recorded = [f for f in env.facts if f.free_symbols & symbols]
    facts: list[Any] = [*recorded[:_MAX_FACTS], *_rounding_facts(expr, interval)]
    for fact in facts:
        rest: Any = expr - fact
        best = max(best, bound(rest, interval).lo, _coefficient_bound(rest, interval))
    return best


def _rounding_facts(expr: Any, interval: Any) -> list[Any]:
    """``a - b*(a//b) >= 0``, ``b*(a//b) + b - 1 - a >= 0``, and the definitions of Max and Min."""
    facts: list[Any] = []
    atoms: list[Any] = sorted(expr.atoms(FloorDiv, Mod, sympy.Max, sympy.Min), key=str)
    for atom in atoms[: _MAX_FACTS // 4]:
        if isinstance(atom, (sympy.Max, sympy.Min)):
            sign = 1 if isinstance(atom, sympy.Max) else -1
            facts += [sign * (atom - a) for a in atom.args]
            continue
        a, b = atom.args
        if bound(b, interval).lo < 1:
            continue
        if isinstance(atom, FloorDiv):
            facts += [a - b * atom, b * atom + b - 1 - a]
        elif bound(a, interval).lo >= 0:
            facts.append(a - atom)
    return facts


def nonnegative_fact(expr: Any) -> Any:
    """The integer ``f`` for which the relation is ``f >= 0``; None for floats."""
    sides: Any = expr.args if isinstance(expr, (sympy.Gt, sympy.Ge)) else expr.args[::-1]
    difference = sides[0] - sides[1]
    if not difference.is_integer:
        return None
    return difference - 1 if isinstance(expr, (sympy.Gt, sympy.Lt)) else difference


def narrowed(
    fact: Any, interval_of: Callable[[sympy.Symbol], Interval]
) -> dict[sympy.Symbol, Interval]:
    """The tighter range that ``c * symbol + k >= 0`` implies; empty for any other fact."""
    linear = _linear(fact)
    if linear is None:
        return {}
    c, symbol, k = linear
    limits = Interval(lo=-(k // c)) if c > 0 else Interval(hi=k // -c)
    return {symbol: interval_of(symbol) & limits}


def _linear(expr: Any) -> tuple[int, sympy.Symbol, int] | None:
    """``(c, symbol, k)`` for an expression ``c * symbol + k``, else None."""
    offset, rest = expr.as_coeff_Add()
    factor, symbol = rest.as_coeff_Mul()
    if symbol.is_Symbol and factor.is_Integer and offset.is_Integer:
        return int(factor), symbol, int(offset)
    return None


def orientations(lhs: Any, rhs: Any) -> Iterator[tuple[Any, Any]]:
    """Readings of ``lhs == rhs`` as ``symbol = value``: constants first, newer symbols by older."""
    if lhs.is_Symbol and rhs.is_Symbol and _age(lhs) < _age(rhs):
        lhs, rhs = rhs, lhs
    yield lhs, rhs
    yield rhs, lhs
    linear = _linear(lhs - rhs)
    if linear is not None:
        c, symbol, k = linear
        if k % c == 0:
            yield symbol, Integer(-k // c)


def _age(symbol: sympy.Symbol) -> int:
    digits = symbol.name.lstrip("suf")
    return int(digits) if digits.isdigit() else 0
