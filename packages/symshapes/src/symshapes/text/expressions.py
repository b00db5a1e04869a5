"""Expressions of sizes as Python source, and back."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import sympy

from symshapes.errors import ParseError
from symshapes.expr import (
    MATH_FUNCTIONS,
    Ceil,
    Floor,
    FloorDiv,
    Mod,
    Round,
    ToFloat,
    TrueDiv,
    Trunc,
    constant,
)
from symshapes.guards import PythonPrinter

from .form import reading


class _TextPrinter(PythonPrinter):
    """Prints such that the parser finds each class again, and in one order on every machine."""

    printmethod = "_none"  # not the operators' own, which print TrueDiv like a rational number

    def _call(self, name: str, expr: Any) -> str:
        texts = [self._print(arg) for arg in expr.args]
        is_symmetric = isinstance(expr, sympy.Min | sympy.Max)
        return f"{name}({', '.join(sorted(texts) if is_symmetric else texts)})"

    def _print_FloorDiv(self, expr: Any) -> str:
        return "({} // {})".format(*(self._operand(arg) for arg in expr.args))

    def _print_Mod(self, expr: Any) -> str:
        return "({} % {})".format(*(self._operand(arg) for arg in expr.args))

    def _operand(self, expr: Any) -> str:
        is_closed = (
            expr.is_Symbol or isinstance(expr, FloorDiv | Mod) or self._print(expr).isdigit()
        )
        return self._print(expr) if is_closed else f"({self._print(expr)})"

    def _print_And(self, expr: Any) -> str:
        return f"({' and '.join(sorted(self._print(arg) for arg in expr.args))})"

    def _print_Or(self, expr: Any) -> str:
        return f"({' or '.join(sorted(self._print(arg) for arg in expr.args))})"


_PRINTER = _TextPrinter({})


def format_expression(expr: Any) -> str:
    """``expr`` as Python source; ``parse_expression`` reads it."""
    return _PRINTER.doprint(expr)


LARGEST_EXPONENT = 1024


def power(base: Any, exponent: Any) -> Any:
    """``base**exponent``. Raises OverflowError for one that would take hours to compute."""
    size = base.p.bit_length() * abs(exponent.p) if base.is_Integer and exponent.is_Integer else 0
    if (exponent.is_Number and abs(exponent) > LARGEST_EXPONENT) or size > 16 * LARGEST_EXPONENT:
        raise OverflowError(f"the power {base}**{exponent} is too large")
    result = base**exponent
    if result.is_Pow and result.exp.is_Number and abs(result.exp) > LARGEST_EXPONENT:
        raise OverflowError(f"the power {result} is too large")
    return result


def _factors(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BinOp(op=ast.Mult()):
            return [*_factors(node.left), node.right]
    return [node]


_UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: lambda a: -a, ast.Not: sympy.Not}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: power,
    ast.FloorDiv: FloorDiv,
    ast.Mod: Mod,
}
_RELATIONS: dict[type, Callable[..., Any]] = {
    ast.Eq: sympy.Eq, ast.NotEq: sympy.Ne, ast.Lt: sympy.Lt, ast.LtE: sympy.Le,
    ast.Gt: sympy.Gt, ast.GtE: sympy.Ge,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max": sympy.Max, "min": sympy.Min, "abs": sympy.Abs, "float": ToFloat, "int": Trunc,
    "round": Round, "TrueDiv": TrueDiv, "math.floor": Floor, "math.ceil": Ceil,
    **{f"math.{name}": function for name, function in MATH_FUNCTIONS.items()},
}  # fmt: skip


def parse_condition(node: ast.expr, symbols: Mapping[str, sympy.Symbol]) -> Any:
    """A condition on sizes, as written: what SymPy would conclude from the assumptions about a
    symbol may be what the condition checks. Raises ParseError.
    """
    match node:
        case ast.Compare(ops=[op], comparators=[right]) if type(op) in _RELATIONS:
            sides = (parse_expression(side, symbols) for side in (node.left, right))
            return _RELATIONS[type(op)](*sides, evaluate=False)
    found = parse_expression(node, symbols)
    if not isinstance(found, sympy.logic.boolalg.Boolean) or found.is_Symbol:
        raise ParseError.at(node, "not a condition on sizes")
    return found


def parse_expression(node: ast.expr, symbols: Mapping[str, sympy.Symbol]) -> Any:
    """The expression of a syntax tree. Raises ParseError with the place of what isn't one."""

    def read(part: ast.expr) -> Any:
        match part:
            case ast.Constant(value=bool() | int() | float() as value):
                return constant(value)
            case ast.Name(id=name) if name in symbols:
                return symbols[name]
            case ast.UnaryOp(op=op) if type(op) in _UNARY:
                return _UNARY[type(op)](read(part.operand))
            case ast.BinOp(op=ast.Mult()):  # at once: SymPy distributes a number over one sum
                return sympy.Mul(*map(read, _factors(part)))
            case ast.BinOp(op=op) if type(op) in _BINARY:
                return _BINARY[type(op)](read(part.left), read(part.right))
            case ast.BoolOp():
                kind = sympy.And if isinstance(part.op, ast.And) else sympy.Or
                return reduce(kind, map(read, part.values))
            case ast.Compare(ops=[op], comparators=[right]) if type(op) in _RELATIONS:
                return _RELATIONS[type(op)](read(part.left), read(right))
            case ast.IfExp():
                return sympy.Piecewise(
                    (read(part.body), read(part.test)), (read(part.orelse), True)
                )
            case ast.Call(keywords=[]) if (name := ast.unparse(part.func)) in _FUNCTIONS:
                return _FUNCTIONS[name](*map(read, part.args))
        raise ParseError.at(part, "not an expression of sizes")

    with reading(node):
        return read(node)
