"""Conditions on sizes as text. A text is checked before it is compiled: it may compare and compute
with its symbols, and nothing else.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection
from typing import Any

_FUNCTIONS: dict[str, Any] = {
    "abs": abs, "float": float, "int": int, "math": math, "max": max, "min": min, "round": round,
}  # fmt: skip
_ALLOWED = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.BinOp, ast.Add, ast.Sub, ast.Mult),
    *(ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.IfExp, ast.Load, ast.Name, ast.Constant),
)


def read_conditions(texts: Collection[str], symbols: Collection[str]) -> Callable[..., bool]:
    """A function of the symbols' values, in order, that says whether all conditions hold.

    Raises ValueError for a text that is no such condition.
    """
    for text in texts:
        _check(text, symbols)
    scope: dict[str, Any] = {"__builtins__": {}, **_FUNCTIONS}
    together = " and ".join(f"({text})" for text in texts) or "True"
    return eval(f"lambda {', '.join(symbols)}: {together}", scope)


def _check(text: str, symbols: Collection[str]) -> None:
    for node in ast.walk(ast.parse(text, mode="eval")):
        match node:
            case ast.Name(id=name) if name not in symbols and name not in _FUNCTIONS:
                raise ValueError(f"{name!r} in the condition {text!r} is not known")
            case ast.Constant(value=value) if type(value) not in (int, float, bool):
                raise ValueError(f"{value!r} in the condition {text!r} is no number")
            case ast.Call(func=ast.Name() | ast.Attribute(), keywords=[]):
                pass
            case ast.Attribute(value=ast.Name(id="math"), attr=name) if not name.startswith("_"):
                pass
            case _ if not isinstance(node, _ALLOWED):
                raise ValueError(f"{type(node).__name__} in the condition {text!r}")
