"""Size symbols of a text: their declarations, and the environment that a reader makes of them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from symshapes.env import ShapeEnv
from symshapes.errors import ParseError
from symshapes.ranges import INF
from symshapes.values import is_nested_int

from .expressions import format_expression, parse_expression
from .values import Unwritable, format_float, parse_value

KINDS = {
    "size": (torch.SymInt, int),
    "real": (torch.SymFloat, float),
    "truth": (torch.SymBool, bool),
}
"""The constructors of symbolic numbers: ``size(2*s0)`` is a SymInt."""


@dataclass(slots=True)
class SymbolWriter:
    """Formats sizes, and notes the symbols in them; sizes of other environments are an error, or
    not declared without ``strict``.
    """

    strict: bool = True
    env: ShapeEnv | None = None
    used: dict[str, sympy.Symbol] = field(default_factory=dict)

    def size(self, value: Any) -> str:
        """An int, or a symbolic number as a bare expression."""
        if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return repr(value)
        env = getattr(value.node, "shape_env", None)
        if is_nested_int(value) or not isinstance(env, ShapeEnv):
            if not self.strict:
                return str(value)
            raise Unwritable(f"a size of another environment, {value}")
        self.env = env
        self.used |= {symbol.name: symbol for symbol in value.node.expr.free_symbols}
        return format_expression(value.node.expr)

    def number(self, value: Any) -> str | None:
        """A symbolic number with its kind; None for other values."""
        for name, (kind, _) in KINDS.items():
            if isinstance(value, kind):
                return f"{name}({self.size(value)})"
        return None

    def declarations(self) -> list[str]:
        """A line per symbol."""
        return [self._declaration(self.used[name]) for name in sorted(self.used, key=_natural)]

    def _declaration(self, symbol: sympy.Symbol) -> str:
        assert self.env is not None
        interval, hint = self.env.ranges[symbol], self.env.hints.get(symbol)
        bounds = [
            f"{name}={bound}"
            for name, bound in (("lower", interval.lo), ("upper", interval.hi))
            if symbol.is_integer and bound not in (INF, -INF)
        ]
        if hint is not None:
            bounds.append(f"hint={format_float(hint) if type(hint) is float else hint}")
        return f"{symbol.name} = {'Size' if symbol.is_integer else 'Real'}({', '.join(bounds)})"


def _natural(name: str) -> tuple[str, int]:
    letters, number = re.fullmatch(r"(.*?)(\d*)", name).groups()  # type: ignore[union-attr]
    return letters, int(number or -1)


@dataclass(slots=True)
class SymbolReader:
    """The environment of a text, and its symbols by name."""

    env: ShapeEnv = field(default_factory=lambda: ShapeEnv(allow_unbacked=True))
    symbols: dict[str, sympy.Symbol] = field(default_factory=dict)

    def declare(self, statement: ast.Assign) -> None:
        """Reads ``s0 = Size(lower=2, hint=4)``."""
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name(id="Size" | "Real" as kind), args=[], keywords=words),
            ):
                given = {str(word.arg): parse_value(word.value) for word in words}
                number = int if kind == "Size" else (int, float)
                if set(given) <= {"lower", "upper", "hint"} and all(
                    isinstance(value, number) for value in given.values()
                ):
                    pytype = int if kind == "Size" else float
                    self.symbols[name] = self.env.restore_symbol(name, pytype, **given)
                    return
        raise ParseError.at(statement, "not a declaration of a symbol")

    def size(self, node: ast.expr) -> Any:
        """A bare expression of integers."""
        return self.env.wrap(parse_expression(node, self.symbols), int)

    def number(self, node: ast.expr) -> Any:
        """``size(...)``, ``real(...)`` or ``truth(...)``; None for other expressions."""
        match node:
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in KINDS:
                return self.env.wrap(parse_expression(inner, self.symbols), KINDS[name][1])
        return None
