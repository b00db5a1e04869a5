"""Formulas of derivatives, computed by prims: arithmetic, comparison, ``&``, and calls of prims by
name.
"""

from __future__ import annotations

import ast
import math
from functools import cached_property
from typing import Any

import torch

from primops import prims
from primops.errors import PrimError
from primops.operand import full_like
from primops.prim import Prim, registered
from primops.promotion import is_number

CONSTANTS = {"pi": math.pi}
OPERATORS: dict[type[ast.AST], Prim] = {
    ast.Add: prims.add, ast.Sub: prims.sub, ast.Mult: prims.mul, ast.Div: prims.div,
    ast.Pow: prims.pow, ast.USub: prims.neg, ast.BitAnd: prims.bitwise_and,
    ast.Eq: prims.eq, ast.Lt: prims.lt, ast.Gt: prims.gt, ast.GtE: prims.ge,
}  # fmt: skip


class Formula:
    """A rule for an elementwise prim, of ``g`` (the result's gradient), ``y`` (the result) and the
    prim's operands by name, each a tensor or a number.
    """

    def __init__(self, prim: Prim, text: str) -> None:
        """``text`` is parsed when it is first used: imports stay quick."""
        self._names = ("g", "y", *prim.operands)
        self._text = text

    @cached_property
    def _expression(self) -> ast.AST:
        return ast.parse(self._text, mode="eval").body

    def __call__(self, *values: Any) -> Any:
        """The gradient, from the values of the names."""
        named = CONSTANTS | dict(zip(self._names, values, strict=True))
        found = _evaluate(self._expression, named)
        return full_like(named["g"], found) if is_number(found) else found


def _evaluate(node: ast.AST, named: dict[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return named[name]
        case ast.UnaryOp(op=operator, operand=operand):
            return _apply(OPERATORS[type(operator)], named, operand)
        case ast.BinOp(left=left, op=operator, right=right):
            return _apply(OPERATORS[type(operator)], named, left, right)
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            return _apply(OPERATORS[type(operator)], named, left, right)
        case ast.Call(func=ast.Name(id=name), args=operands):
            return _apply(registered()[name], named, *operands)
        case _:
            raise PrimError(f"a formula can't hold {ast.unparse(node)}")


def _apply(prim: Prim, named: dict[str, Any], *nodes: ast.AST) -> Any:
    values = [_evaluate(node, named) for node in nodes]
    if prim is prims.where and isinstance(values[0], bool):
        return values[1] if values[0] else values[2]
    if not all(map(is_number, values)):
        return prim(*values)
    if all(isinstance(value, (int, float)) for value in values):
        exact = (torch.tensor(float(value), dtype=torch.float64) for value in values)
        return prim.reference(*exact).item()
    return prim(*(full_like(named["g"], value) for value in values))  # symbolic numbers
