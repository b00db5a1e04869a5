"""Compiles conditions on sizes to the stack program of ``native/shapes.c``, or to one Python
function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
from symshapes import FloorDiv, Mod, SizeGuard, python_text

OPS = {
    name: number
    for number, name in enumerate(
        (
            *(
                "PUSH",
                "SYMBOL",
                "ADD",
                "MULTIPLY",
                "NEGATE",
                "FLOOR_DIVIDE",
                "MODULO",
                "MINIMUM",
                "MAXIMUM",
                "POWER",
            ),
            *(
                "EQUAL",
                "NOT_EQUAL",
                "LESS",
                "LESS_EQUAL",
                "GREATER",
                "GREATER_EQUAL",
                "AND",
                "OR",
                "NOT",
                "REQUIRE",
            ),
        )
    )
}
LARGEST = 2**62
RELATIONS = {
    sympy.Eq: "EQUAL",
    sympy.Ne: "NOT_EQUAL",
    sympy.StrictLessThan: "LESS",
    sympy.LessThan: "LESS_EQUAL",
    sympy.StrictGreaterThan: "GREATER",
    sympy.GreaterThan: "GREATER_EQUAL",
}
FOLDED = {
    sympy.Add: "ADD",
    sympy.Mul: "MULTIPLY",
    sympy.Min: "MINIMUM",
    sympy.Max: "MAXIMUM",
    sympy.And: "AND",
    sympy.Or: "OR",
    FloorDiv: "FLOOR_DIVIDE",
    Mod: "MODULO",
    sympy.Mod: "MODULO",
}


class NotCompilable(Exception):
    """An expression that the stack program has no operations for."""


def compile_condition(expr: Any, symbols: Mapping[sympy.Symbol, int]) -> list[int]:
    """Operations and operands, alternating, that fail unless the condition holds; NotCompilable if
    there are none.
    """
    code: list[int] = []
    _write(expr, symbols, code)
    _op(code, "REQUIRE")
    return code


def _op(code: list[int], name: str, operand: int = 0) -> None:
    code += (OPS[name], operand)


def _write(expr: Any, symbols: Mapping[sympy.Symbol, int], code: list[int]) -> None:
    if expr.is_Symbol:
        if expr not in symbols:
            raise NotCompilable(f"{expr} has no source")
        _op(code, "SYMBOL", symbols[expr])
    elif expr in (sympy.true, sympy.false):
        _op(code, "PUSH", int(expr is sympy.true))
    elif expr.is_Integer:
        if abs(int(expr)) > LARGEST:
            raise NotCompilable("constant out of range")
        _op(code, "PUSH", int(expr))
    elif type(expr) in RELATIONS:
        _write_relation(expr, symbols, code)
    elif type(expr) in FOLDED:
        _write_folded(expr.args, FOLDED[type(expr)], symbols, code)
    else:
        _write_other(expr, symbols, code)


def _write_folded(
    args: Sequence[Any], name: str, symbols: Mapping[sympy.Symbol, int], code: list[int]
) -> None:
    _write(args[0], symbols, code)
    for arg in args[1:]:
        _write(arg, symbols, code)
        _op(code, name)


def _write_relation(expr: Any, symbols: Mapping[sympy.Symbol, int], code: list[int]) -> None:
    """Writes a relation with both sides multiplied by their (constant) denominators."""
    (left, below_left), (right, below_right) = expr.lhs.as_numer_denom(), expr.rhs.as_numer_denom()
    if not (
        below_left.is_Integer and below_right.is_Integer and below_left > 0 and below_right > 0
    ):
        raise NotCompilable("a denominator is not constant")
    _write(left * below_right if below_right != 1 else left, symbols, code)
    _write(right * below_left if below_left != 1 else right, symbols, code)
    _op(code, RELATIONS[type(expr)])


def _write_other(expr: Any, symbols: Mapping[sympy.Symbol, int], code: list[int]) -> None:
    if isinstance(expr, sympy.Not):
        _write(expr.args[0], symbols, code)
        _op(code, "NOT")
    elif expr.is_Pow and expr.exp.is_Integer and expr.exp >= 0:
        _write_folded(expr.args, "POWER", symbols, code)
    else:
        raise NotCompilable(f"{type(expr).__name__} in {expr}")


_NAMES: dict[str, Any] = {
    **{name: value for name, value in vars(math).items() if not name.startswith("_")},
    "math": math,
    "FloorDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "TrueDiv": lambda a, b: a / b,
}


def python_function(expr: Any, symbols: Sequence[sympy.Symbol]) -> Callable[..., Any]:
    """An expression as a function of its symbols' values."""
    return eval(f"lambda {', '.join(s.name for s in symbols)}: {python_text(expr)}", dict(_NAMES))


def python_condition(
    guards: Sequence[SizeGuard], symbols: Sequence[sympy.Symbol]
) -> Callable[..., bool]:
    """A function of the symbols' values that says whether all guards hold."""
    names = {symbol: f"v{k}" for k, symbol in enumerate(symbols)}
    text = " and ".join(python_text(guard.expr, names) for guard in guards)
    try:
        function = eval(f"lambda {', '.join(names.values())}: {text}", dict(_NAMES))
        known = {*_NAMES, "bool", "float", "int", "round", "max", "min", "abs"}
        if all(name in known or hasattr(math, name) for name in function.__code__.co_names):
            return function
    except SyntaxError:
        pass
    return lambda *values: all(
        guard.holds(dict(zip(symbols, values, strict=True))) for guard in guards
    )
