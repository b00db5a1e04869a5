"""The functions of a program's source files in which lines lie."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

MOST_LINES = 160
"""Lines up to which a function is shown whole."""
AROUND = 4


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive lines of a file, from line ``first`` on."""

    file: str
    title: str
    first: int
    lines: tuple[str, ...]


def regions(file: str, source: Sequence[str], lines: Iterable[int]) -> list[Region]:
    """The innermost functions around ``lines``, in order; of long ones the lines nearby."""
    found: dict[tuple[int, int, str], None] = {}
    functions = _functions("\n".join(source))
    for line in sorted({*lines}):
        inside = [f for f in functions if f[0] <= line <= f[1]]
        if inside:
            first, last, title = max(inside, key=lambda f: f[0])
            if last - first >= MOST_LINES:
                first, last = max(first, line - AROUND), min(last, line + AROUND)
        else:
            first, last, title = max(1, line - AROUND), min(len(source), line + AROUND), ""
        found[first, last, title] = None
    return [
        Region(file, title, first, tuple(source[first - 1 : last]))
        for first, last, title in _joined([*found])
    ]


def _joined(parts: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Parts of one function that touch become one."""
    result: list[tuple[int, int, str]] = []
    for first, last, title in sorted(parts):
        if result and result[-1][2] == title and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]), title)
        else:
            result.append((first, last, title))
    return result


@cache
def _functions(source: str) -> tuple[tuple[int, int, str], ...]:
    """The first line, last line and qualified name of each function."""
    found: list[tuple[int, int, str]] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                if not isinstance(child, ast.ClassDef):
                    found.append((child.lineno, child.end_lineno or child.lineno, name))
            visit(child, name)

    with suppress(SyntaxError):
        visit(ast.parse(source), "")
    return tuple(found)
