"""Error families of this package."""

from __future__ import annotations

import torch


class AotError(RuntimeError):
    """Base of every error that this package raises on purpose."""


class Unsupported(AotError):
    """The program is legal but cannot be compiled ahead of time; the caller should run it eagerly.

    Attributes:
        id: stable identifier such as ``"AG010"``; ``python -m torchstrata help AG010`` explains it.
        reason: one line.
        user_line: the user's source line, or an empty string.
    """

    def __init__(
        self, id: str, reason: str, *, node: torch.fx.Node | None = None, line: str = ""
    ) -> None:
        self.id = id
        self.reason = reason
        self.user_line = line.rstrip() or source_line(node)
        lines = [f"{id}: {reason}", *filter(None, [self.user_line])]
        super().__init__("\n".join([*lines, f"  help: python -m torchstrata help {id}"]))


class ContractError(AotError):
    """A graph breaks a clause of ``docs/contracts.md``.

    Attributes:
        clause: the clause's number such as ``"C2.1"``.
        node: name of the offending node, or an empty string.
    """

    def __init__(self, clause: str, message: str, *, node: torch.fx.Node | None = None) -> None:
        self.clause = clause
        self.node = "" if node is None else node.name
        where = f" at {node.format_node()}" if node is not None else ""
        line = source_line(node)
        super().__init__(f"{clause}: {message}{where}" + (f"\n{line}" if line else ""))


class CompilerError(AotError):
    """A compiler callable raised or returned something that cannot be called (contract B4)."""


class UserError(AotError):
    """The caller's program or arguments are wrong."""


def source_line(node: torch.fx.Node | None) -> str:
    """The user's lines that made a node, or an empty string."""
    return "" if node is None else str(node.meta.get("stack_trace") or "").rstrip()
