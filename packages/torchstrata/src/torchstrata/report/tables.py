"""Tables in a terminal: with rich where that is installed and a terminal is there, else plain."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts; columns whose names begin with ``>`` are aligned to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


Block = Table | str
"""A part of a text: a table, or lines."""


def plain_text(blocks: Sequence[Block]) -> str:
    """The blocks as plain text."""
    return "\n\n".join(b if isinstance(b, str) else _plain(b) for b in blocks) + "\n"


def _plain(table: Table) -> str:
    names = [name.lstrip(">") for name in table.columns]
    rows = [names, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]

    def line(row: Sequence[str]) -> str:
        cells = (
            f"{text:>{width}}" if name.startswith(">") else f"{text:<{width}}"
            for text, width, name in zip(row, widths, table.columns, strict=True)
        )
        return (_GAP + _GAP.join(cells)).rstrip()

    return "\n".join([table.title, *map(line, rows)])


def show(blocks: Sequence[Block]) -> None:
    """Prints the blocks."""
    if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        print(plain_text(blocks), end="")
        return
    from rich import box, console, table, text  # noqa: PLC0415 (an optional dependency)

    width = shutil.get_terminal_size().columns
    out = console.Console(width=width, highlight=False)
    for block in blocks:
        if isinstance(block, str):
            out.print(block, markup=False)
            continue
        title = text.Text(block.title, style="bold")
        shown = table.Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for name in block.columns:
            shown.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
        for row in block.rows:
            shown.add_row(*map(text.Text, row))
        out.print(shown)
