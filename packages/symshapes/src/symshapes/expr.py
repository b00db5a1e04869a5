"""SymPy functions for Python's arithmetic on sizes, with cheap, bounded simplification.

Every rewrite on construction preserves the value for all integer arguments for which Python's
operation is defined. Nothing here searches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import sympy
from sympy import Integer, S
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

_MAX_OPS = 60  # expressions larger than this are left as they are


def _is_multiple(term: Any, divisor: Any) -> bool:
    """Whether ``term / divisor`` is structurally an integer expression."""
    if term == 0:
        return True
    if term.is_Integer and divisor.is_Integer:
        return int(term) % int(divisor) == 0
    quotient = term / divisor
    _, denominator = quotient.as_numer_denom()
    return denominator == 1 and bool(quotient.is_integer)


def _factor_out(a: Any, b: Any) -> tuple[Any, Any, Any] | None:
    """``(g, a / g, b / g)`` for a common factor ``g`` other than one, or None."""
    if a.is_Integer and b.is_Integer:
        g: Any = Integer(math.gcd(int(a), int(b)))
    elif _operations(a) + _operations(b) > _MAX_OPS:
        return None
    else:
        g = _monomial_gcd(a, b)
    if g in (0, 1):
        return None
    return g, _divide(a, g), _divide(b, g)


def _operations(expr: Any) -> int:
    """Roughly ``count_ops``, whose first call loads much of SymPy."""
    return sum(max(len(part.args) - 1, 1) for part in sympy.preorder_traversal(expr) if part.args)


def _divide(a: Any, g: Any) -> Any:
    return sympy.Add(*[t / g for t in sympy.Add.make_args(a)])


def _monomial_gcd(*exprs: Any) -> Any:
    """The greatest common monomial of all terms: integer coefficient times powers of atoms."""
    coefficient = 0
    powers: dict[Any, int] | None = None
    for expr in exprs:
        for term in sympy.Add.make_args(expr):
            number, rest = term.as_coeff_Mul()
            if not number.is_Integer:
                return S.One
            coefficient = math.gcd(coefficient, int(number))
            exponents: dict[Any, int] = {}
            for factor in sympy.Mul.make_args(rest):
                base, exponent = factor.as_base_exp()
                if exponent.is_Integer and exponent > 0 and base is not S.One:
                    exponents[base] = exponents.get(base, 0) + int(exponent)
            if powers is None:
                powers = exponents
            else:
                powers = {b: min(e, exponents[b]) for b, e in powers.items() if b in exponents}
    return Integer(coefficient or 1) * sympy.Mul(*[b**e for b, e in (powers or {}).items()])


class _Division(sympy.Function):
    """A binary operator that prints as ``(a sign b)``."""

    nargs = (2,)
    is_real = True
    precedence = PRECEDENCE["Atom"]  # prints its own parentheses
    sign: str

    def _sympystr(self, printer: Any) -> str:
        return _plain_text(self) if type(printer) is StrPrinter else self._text(printer)

    def _text(self, printer: Any) -> str:
        a, b = (printer.parenthesize(x, PRECEDENCE["Pow"], strict=True) for x in self.args)
        return f"({a} {self.sign} {b})"


@lru_cache(maxsize=10_000)
def _plain_text(division: _Division) -> str:
    """Expressions are often sorted by their texts, and divisions are deeply nested."""
    return division._text(StrPrinter())


class FloorDiv(_Division):
    """Python's ``a // b`` on integers (rounds towards minus infinity)."""

    is_integer = True
    sign = "//"

    @classmethod
    def eval(cls, *args: Any) -> Any:
        a, b = args
        if b == 0:
            return None
        if a.is_Integer and b.is_Integer:
            return Integer(int(a) // int(b))
        if b == 1 or a == 0:
            return a
        if a == b:
            return S.One
        if isinstance(a, FloorDiv) and b.is_positive:
            # floor(floor(x) / b) == floor(x / b) for b > 0
            return FloorDiv(a.args[0], a.args[1] * b)
        terms = sympy.Add.make_args(a)
        if len(terms) > _MAX_OPS:
            return None
        whole = [t for t in terms if _is_multiple(t, b)]
        if whole:
            rest = sympy.Add(*[t for t in terms if t not in whole])
            return sympy.Add(*[t / b for t in whole]) + (FloorDiv(rest, b) if rest != 0 else 0)
        common = _factor_out(a, b)
        return None if common is None else FloorDiv(common[1], common[2])

    def _eval_is_nonnegative(self) -> bool | None:
        a, b = self.args
        return True if a.is_nonnegative and b.is_positive else None


class Mod(_Division):
    """Python's ``a % b`` on integers (the sign of the result is the sign of ``b``)."""

    is_integer = True
    sign = "%"

    @classmethod
    def eval(cls, *args: Any) -> Any:
        a, b = args
        if b == 0:
            return None
        if a.is_Integer and b.is_Integer:
            return Integer(int(a) % int(b))
        if b == 1 or a == b or a == 0:
            return S.Zero
        if isinstance(a, Mod) and a.args[1] == b:
            return a
        terms = sympy.Add.make_args(a)
        if len(terms) > _MAX_OPS:
            return None
        rest = [t for t in terms if not _is_multiple(t, b)]
        if b.is_Integer:
            rest = [_reduce_coefficient(t, int(b)) for t in rest]
        if rest != list(terms):
            return Mod(sympy.Add(*rest), b)
        common = _factor_out(a, b)
        if common is not None:
            g, x, y = common
            return g * Mod(x, y)  # g*x - g*y*floor(x/y)
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[1].is_positive else None


def _reduce_coefficient(term: Any, divisor: int) -> Any:
    coefficient, rest = term.as_coeff_Mul()
    if coefficient.is_Integer and rest.is_integer:
        return Integer(int(coefficient) % divisor) * rest
    return term


def CeilDiv(a: Any, b: Any) -> Any:
    """``ceil(a / b)`` on integers, written with FloorDiv."""
    down: Any = FloorDiv(-sympy.sympify(a), sympy.sympify(b))
    return -down


class TrueDiv(_Division):
    """Python's ``a / b``: a float, correctly rounded."""

    sign = "/"

    @classmethod
    def eval(cls, *args: Any) -> Any:
        a, b = args
        if b != 0 and _is_constant(a) and _is_constant(b):
            return sympy.Float(number(a) / number(b))
        return None


def _integral(a: Any) -> Any:
    """The integer expression that a float expression obviously equals, or None."""
    coefficient, rest = a.as_coeff_Mul()
    if isinstance(rest, ToFloat) and float(coefficient).is_integer() and rest.args[0].is_integer:
        return Integer(int(coefficient)) * rest.args[0]
    return a if a.is_integer else None


def function_class(
    name: str, evaluate: Callable[..., Any], function: Callable[..., Any], **body: Any
) -> type[sympy.Function]:
    """The SymPy class of a Python function, which ``evaluate`` simplifies."""
    documentation = f"``{function.__name__}``."
    body = {"nargs": (1,), "eval": classmethod(evaluate), "__doc__": documentation, **body}
    return type(name, (sympy.Function,), body)


def _rounding(
    name: str, function: Callable[[float], int], of_quotient: Callable[[Any, Any], Any]
) -> type[sympy.Function]:
    """A class for the rounding ``function``; ``of_quotient`` simplifies it on integer quotients."""

    def evaluate(cls: type, a: Any) -> Any:
        if _is_constant(a):
            return Integer(function(number(a)))
        is_quotient = isinstance(a, TrueDiv) and all(x.is_integer for x in a.args)
        rounded = of_quotient(*a.args) if is_quotient else None
        return _integral(a) if rounded is None else rounded

    return function_class(name, evaluate, function, is_integer=True)


def _truncated(a: Any, b: Any) -> Any:
    # exact below 2**53, far above any size
    return FloorDiv(a, b) if a.is_nonnegative and b.is_positive else None


Trunc = _rounding("Trunc", math.trunc, _truncated)
Floor = _rounding("Floor", math.floor, FloorDiv)
Ceil = _rounding("Ceil", math.ceil, CeilDiv)
Round = _rounding("Round", round, lambda a, b: None)  # halves to even


def _float_function(name: str, function: Callable[[float], float]) -> type[sympy.Function]:
    """A class for a ``function`` with float results, which is evaluated on constants only."""

    def evaluate(cls: type, a: Any) -> Any:
        return sympy.Float(function(number(a))) if _is_constant(a) else None

    return function_class(name, evaluate, function, is_real=True)


ToFloat = _float_function("ToFloat", float)
_MATH_NAMES = "sqrt cos cosh sin sinh tan tanh asin acos atan log2 exp log"
MATH_FUNCTIONS: dict[str, type[sympy.Function]] = {
    name: _float_function(f"Float{name.capitalize()}", getattr(math, name))
    for name in _MATH_NAMES.split()
}


def _is_constant(a: Any) -> bool:
    return a.is_Integer or a.is_Float or a.is_Rational


def number(a: Any) -> int | float:
    """The Python number of a SymPy constant."""
    return int(a) if a.is_Integer else float(a)


def constant(value: int | float | bool) -> Any:
    """The SymPy constant of a Python number."""
    if isinstance(value, bool):
        return S.true if value else S.false
    return Integer(value) if isinstance(value, int) else sympy.Float(value)


def python_value(expr: Any) -> int | float | bool | None:
    """The Python value of a constant expression, or None when symbols are left."""
    if expr is S.true or expr is S.false:
        return expr is S.true
    return number(expr) if getattr(expr, "is_number", False) else None


def substitute(expr: Any, values: Mapping[sympy.Symbol, int | float]) -> int | float | bool:
    """Evaluates ``expr`` with Python semantics under ``values``.

    Raises KeyError when a symbol has no value and ZeroDivisionError as Python does.
    """
    free = expr.free_symbols
    missing = [s for s in free if s not in values]
    if missing:
        raise KeyError(f"no value for {missing[0]} in {expr}")
    result = python_value(expr.xreplace({s: constant(values[s]) for s in free}))
    if result is None:
        raise ZeroDivisionError(f"{expr} under {dict(values)}")
    return result
