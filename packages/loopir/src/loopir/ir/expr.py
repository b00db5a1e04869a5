"""Index and size expressions: symbols, their text form, and its parser.

Every symbol of a kernel is a non-negative integer and is identified by its name: two kernels with
the same text are equal.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache, lru_cache

import sympy
from symshapes import FloorDiv, Mod, ParseError
from symshapes.text.expressions import power
from symshapes.text.form import reading

INDEX_FUNCTIONS = (sympy.Add, sympy.Mul, FloorDiv, Mod, sympy.Min, sympy.Max)


def substitute(expr: sympy.Expr, changes: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    """Replaces symbols in ``expr`` simultaneously."""
    return expr.xreplace(changes) if changes else expr  # type: ignore[return-value]


@lru_cache(1 << 16)
def symbols_of(expr: sympy.Expr) -> frozenset[sympy.Symbol]:
    """The free symbols."""
    return frozenset(expr.free_symbols)  # type: ignore[arg-type]


def example_value(expr: sympy.Expr, hints: Mapping[sympy.Symbol, int], guess: int) -> int:
    """The value of a size expression in the example call; ``guess`` replaces sizes without an
    example value.
    """
    if expr.is_Integer:
        return int(expr)
    return int(
        substitute(
            expr, {symbol: sympy.Integer(hints.get(symbol, guess)) for symbol in symbols_of(expr)}
        )
    )


def operands(expr: sympy.Expr) -> tuple[sympy.Expr, ...]:
    """The arguments of a sum, product or function."""
    return expr.args  # type: ignore[return-value]


@cache
def symbol(name: str) -> sympy.Symbol:
    """The index or size symbol of that name."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def format_expr(expr: sympy.Expr | int) -> str:
    """``expr`` as Python source: ``//`` and ``%`` for FloorDiv and Mod, ``min`` and ``max`` for Min
    and Max.
    """
    return _format(sympy.sympify(expr), 0)


@lru_cache(1 << 16)
def is_index_expr(expr: sympy.Expr) -> bool:
    """Whether kernels can compute ``expr``, that is, whether it has a text form."""
    if isinstance(expr, sympy.Symbol | sympy.Integer):
        return True
    if isinstance(expr, sympy.Pow):
        return (
            expr.exp.is_Integer is True
            and expr.exp.is_nonnegative is True
            and is_index_expr(expr.base)
        )  # type: ignore[arg-type]
    return isinstance(expr, INDEX_FUNCTIONS) and all(map(is_index_expr, operands(expr)))


# Precedence: 0 sum, 1 product and //, %, 2 unary, 3 power and atoms.
def _format(expr: sympy.Expr, strength: int) -> str:
    if isinstance(expr, sympy.Symbol):
        return expr.name
    if isinstance(expr, sympy.Integer):
        return str(expr.p) if expr.p >= 0 or strength == 0 else f"({expr.p})"
    if isinstance(expr, sympy.Add):
        return _wrap(_format_sum(expr), strength > 0)
    if isinstance(expr, sympy.Mul):
        return _wrap(_format_product(expr), strength > 0)
    if isinstance(expr, FloorDiv | Mod):
        operator = "//" if isinstance(expr, FloorDiv) else "%"
        left, right = (_format(arg, 2) for arg in operands(expr))
        return f"({left} {operator} {right})"
    if isinstance(expr, sympy.Min | sympy.Max):
        name = "min" if isinstance(expr, sympy.Min) else "max"
        return f"{name}({', '.join(sorted(_format(arg, 0) for arg in operands(expr)))})"
    if isinstance(expr, sympy.Pow):
        base, exponent = operands(expr)
        if isinstance(exponent, sympy.Integer) and exponent >= 0:
            return f"{_format(base, 3)}**{exponent}"
    raise TypeError(f"not an index expression: {sympy.srepr(expr)}")


def _wrap(text: str, needed: bool) -> str:
    return f"({text})" if needed else text


def _format_sum(expr: sympy.Expr) -> str:
    pieces = sorted((isinstance(term, sympy.Integer), _format(term, 0)) for term in operands(expr))
    text = ""
    for _, piece in pieces:
        if not text:
            text = piece
        elif piece.startswith("-"):
            text += f" - {piece[1:]}"
        else:
            text += f" + {piece}"
    return text


def _format_product(expr: sympy.Expr) -> str:
    coefficient, factors = expr.as_coeff_mul()
    if not isinstance(coefficient, sympy.Integer):
        raise TypeError(f"not an index expression: {expr}")
    pieces = sorted(_format(factor, 2) for factor in factors)
    if coefficient == -1:
        return "-" + "*".join(pieces)
    if coefficient != 1:
        pieces.insert(0, str(coefficient))
    return "*".join(pieces)


_BINARY = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: FloorDiv,
    ast.Mod: Mod,
    ast.Pow: power,
}


def expr_of_ast(node: ast.expr) -> sympy.Expr:
    """Reads an expression from Python syntax; raises :class:`ParseError` with the position."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return sympy.Integer(node.value)
    if isinstance(node, ast.Name):
        return symbol(node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](expr_of_ast(node.left), expr_of_ast(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -expr_of_ast(node.operand)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("min", "max")
    ):
        function = sympy.Min if node.func.id == "min" else sympy.Max
        return function(*(expr_of_ast(arg) for arg in node.args))
    raise ParseError.at(node, "not an index expression")


def parse_expr(text: str) -> sympy.Expr:
    """The inverse of :func:`format_expr`."""
    with reading():
        return expr_of_ast(ast.parse(text, mode="eval").body)
