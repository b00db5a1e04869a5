"""Nested blocks of lines, and what is known about each emitted value."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from loopir import Range

from .names import identifier
from .printer import print_index

INDENT = "  "


def for_loop(variable: str, start: str, end: str, step: str = "") -> str:
    """The header of a loop over ``start <= variable < end``."""
    advance = f"{variable} += {step}" if step else f"++{variable}"
    return f"for (i64 {variable} = {start}; {variable} < {end}; {advance}) {{"


def range_loop(item: Range) -> str:
    """The header of a loop over a whole range."""
    return for_loop(identifier(item.symbol.name), "0", print_index(item.extent))


@dataclass(frozen=True, slots=True)
class Binding:
    """A value in scope. ``depth`` is the loop level that computes it; ``run_start`` the scalar text
    of lane 0 when the lanes count up by one; ``lane_array`` the name of its lanes as an indexable
    copy (indirect symbols only); ``constant`` its number; ``exact`` the text of the float32 vector
    that it rounds to bfloat16, ``raised`` of the one it becomes again.
    """

    text: str
    dtype: torch.dtype
    vector: bool
    depth: int
    run_start: str | None = None
    lane_array: str | None = None
    constant: int | float | None = None
    exact: str | None = None
    raised: str | None = None


@dataclass
class Block:
    """Lines, with nested blocks indented under their header."""

    lines: list[str | Block] = field(default_factory=list)
    header: str = ""
    footer: str = ""

    def add(self, line: str | Block) -> None:
        """Appends a line or a nested block."""
        self.lines.append(line)

    def enclose(self, block: Block, header: str, footer: str = "}") -> None:
        """Appends ``block`` under a header."""
        block.header, block.footer = header, footer
        self.lines.append(block)

    def open(self, header: str, footer: str = "}") -> Block:
        """Appends an empty nested block and returns it."""
        self.enclose(block := Block(), header, footer)
        return block

    def render(self, depth: int = 0) -> list[str]:
        """The text, indented."""
        inside = depth + 1 if self.header else depth
        result = [INDENT * depth + self.header] if self.header else []
        for line in self.lines:
            result += line.render(inside) if isinstance(line, Block) else [INDENT * inside + line]
        return [*result, INDENT * depth + self.footer] if self.header else result
