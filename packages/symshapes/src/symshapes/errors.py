"""Error families of this package."""

from __future__ import annotations

import ast


class SymbolicError(RuntimeError):
    """Base of every error that this package raises on purpose."""


class DataDependentError(SymbolicError):
    """A decision or a size needs tensor data, which does not exist while tracing.

    Attributes:
        op: the op or expression that needs the data.
        user_line: the user's line, or an empty string.
    """

    def __init__(self, message: str, *, op: str = "", user_line: str = "") -> None:
        self.op = op
        self.user_line = user_line
        super().__init__(f"{message}\n  asked by {user_line}" if user_line else message)


class GuardOnDataDependent(DataDependentError):
    """A Python decision depends on unbacked symbols."""


class FakeTensorError(SymbolicError):
    """An op cannot run on fakes: mixed modes or devices, a real operand, unsupported layout."""


class FrozenEnvError(SymbolicError):
    """A guard was needed while the environment was frozen."""


class ParseError(SymbolicError):
    """A text does not follow the grammar of its form.

    Attributes:
        line, column: where, counted from 1; 0 if unknown.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(f"line {line}, column {column}: {message}" if line else message)
        self.line = line
        self.column = column

    @classmethod
    def at(cls, node: ast.AST, message: str) -> ParseError:
        """The error at a part of a syntax tree, whose source ends the message."""
        place = getattr(node, "lineno", 0), getattr(node, "col_offset", -1) + 1
        try:
            shown = ast.unparse(node)
        except (ValueError, RecursionError):  # an int of thousands of digits, deep nesting
            shown = "..."
        return cls(f"{message}: {shown}", *place)


class VersionError(ParseError):
    """A text has a version that this package can't read."""
