"""Error families of the package. Messages name what, where (node and the user's line) and what to
try.
"""

from __future__ import annotations

from torch import fx


class PrimopsError(Exception):
    """Base of all errors raised here."""


class PrimError(PrimopsError, ValueError):
    """A prim was called with operands or parameters that its schema does not allow."""


class DerivativeError(PrimopsError):
    """The gradient of an operand that has no derivative was asked for; the message says why."""


class DuplicateRuleError(PrimopsError):
    """A decomposition table was given a second rule for one operator."""


class FrozenTableError(PrimopsError):
    """A rule was added to a table that has been used already."""


class UnknownOpError(PrimopsError):
    """With ``strict=True``: an operator that has no decomposition and is not a declared extern
    call.
    """


class ContractError(PrimopsError):
    """A graph breaks a clause of ``docs/contracts.md``; ``clause`` holds its number."""

    def __init__(self, clause: str, message: str, node: fx.Node | None = None) -> None:
        """Adds the node and the user's source line to the message."""
        super().__init__(f"{clause}: {message}{locate(node)}")
        self.clause = clause


class DecompositionError(PrimopsError):
    """A decomposition raised, or disagrees in shape or dtype with the node that it replaces."""


def user_line(stack_trace: str | None) -> str | None:
    """The innermost ``File "...", line N, in name`` of a stack trace with its source line, or
    None.
    """
    if not stack_trace:
        return None
    lines = [line.strip() for line in stack_trace.strip().splitlines()]
    files = [position for position, line in enumerate(lines) if line.startswith("File ")]
    return ": ".join(lines[files[-1] : files[-1] + 2]) if files else lines[-1]


def locate(node: fx.Node | None) -> str:
    """Text that says where ``node`` comes from, for the end of an error message."""
    if node is None:
        return ""
    line = user_line(node.meta.get("stack_trace"))
    return f"\n  node: {node.format_node() or node.name}" + (f"\n  from: {line}" if line else "")
