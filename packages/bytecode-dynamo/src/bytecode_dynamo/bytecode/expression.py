"""The source text of what is on the stack, for messages."""

from __future__ import annotations

import ast
import linecache

from .instruction import NO_FALL_THROUGH, Code, Op, Position
from .stack_effect import effect

SHOWN = 60


def pushed_by(code: Code, k: int, depth: int) -> Position | None:
    """The position of the expression whose value is ``depth`` entries below the top of the stack
    before instruction ``k``; None where several branches meet.
    """
    while k > 0 and code.instructions[k].label is None:
        k -= 1
        item = code.instructions[k]
        if item.op in NO_FALL_THROUGH:
            return None
        if item.op is Op.SWAP:
            depth = {0: item.arg - 1, item.arg - 1: 0}.get(depth, depth)
            continue
        if item.op is Op.COPY:
            depth = item.arg - 1 if depth == 0 else depth - 1
            continue
        popped, pushed = effect(item)
        if depth < pushed:
            return item.position
        depth += popped - pushed
    return None


def _is_primary(text: str) -> bool:
    """Whether an attribute can follow an expression without parentheses."""
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError:
        return False
    return isinstance(body, ast.Name | ast.Attribute | ast.Call | ast.Subscript)


def text_at(code: Code, position: Position | None) -> str:
    """The expression at a position, or its line where it is long or not known."""
    line, end, column, end_column = position or (None, None, None, None)
    if line is None:
        return f"a value in {code.name}"
    if line == end and column is not None and end_column is not None:
        text = linecache.getline(code.filename, line).encode()[column:end_column].decode()
        if 0 < len(text) <= SHOWN:
            return text if _is_primary(text) else f"({text})"
    return f"a value of line {line}"
