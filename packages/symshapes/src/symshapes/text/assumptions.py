"""What a compilation assumed of sizes, as text, and the description of an environment for keys."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from symshapes.env import ShapeEnv

from .expressions import format_expression, parse_expression
from .form import reading
from .values import Unwritable

Assumption = Sequence[str]
"""The text of a condition, and the user's line that needed it."""


def describe_environment(env: ShapeEnv) -> str:
    """All that decisions on sizes read: the symbols with bounds and hints, and the guards. Raises
    Unwritable for sizes that depend on data.
    """
    if env.unbacked:
        raise Unwritable("a size that depends on data")
    symbols = [
        f"{symbol.name} {symbol.is_integer} {env.declared[symbol]} {env.ranges[symbol]} {hint!r}"
        for symbol, hint in env.hints.items()
    ]
    return "\n".join([*symbols, *(format_expression(guard.expr) for guard in env.guards)])


def format_assumptions(env: ShapeEnv, start: int) -> list[Assumption]:
    """The guards of an environment from number ``start`` on."""
    return [(format_expression(guard.expr), guard.provenance) for guard in env.guards[start:]]


def add_assumptions(env: ShapeEnv, assumptions: Iterable[Assumption]) -> None:
    """Adds guards as text to an environment with the same symbols. Raises ParseError."""
    symbols = {symbol.name: symbol for symbol in env.hints}
    before = env.provenance
    try:
        for text, line in assumptions:
            with reading():
                expr = parse_expression(ast.parse(text, mode="eval").body, symbols)
                if env.statically_known(expr) is not True:
                    env.provenance = lambda line=line: line
                    env.add_guard(expr)
    finally:
        env.provenance = before
