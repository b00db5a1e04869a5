"""Accesses that are strided along the vector axis but contiguous along the last outer loop:
transposed through a tile, in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import sympy
import torch
from loopir import Instruction, Range

from .access import as_expr, stride_along
from .dtypes import c_type
from .names import identifier
from .printer import print_index
from .scope import Block

MOST = 4


@dataclass
class Tiles:
    """The tiles of a kernel whose unit is a square of ``axis`` (``begin`` to ``end``) and ``row``
    (``top`` to ``bottom``).

    ``before`` and ``after`` are the blocks around the unit's loops, where tiles are filled and
    emptied, ``ahead`` is the start of a row; ``stored`` are buffers that the kernel writes,
    ``once`` those that it accesses in one place. The next tile lies along ``towards``, one of the
    two.
    """

    axis: Range
    row: Range
    towards: Range
    stored: frozenset[str]
    once: frozenset[str]
    before: Block
    ahead: Block
    after: Block
    names: dict[tuple[str, sympy.Expr], str] = field(default_factory=dict)

    def place(self, name: str) -> str:
        """The address of lane 0 in a tile."""
        return (
            f"{name}.data + (({identifier(self.row.symbol.name)} - top)*TILE + "
            f"{identifier(self.axis.symbol.name)} - begin)"
        )

    def load(self, step: Instruction, known: set[str]) -> str | None:
        """The address to load from instead, or None if ``step`` is not such an access. ``known``
        are names of other values.
        """
        buffer, index, mask, _ = step.args
        expr = as_expr(index)
        if mask is not None or buffer in self.stored or not self._jumps(expr, known):
            return None
        name = self.names.get((str(buffer), expr))
        if name is None:
            if len(self.names) >= MOST:
                return None
            name = self._new(str(buffer), expr, step.dtype)
            ahead = stride_along(expr, self.towards.symbol)
            assert ahead is not None
            self.before.add(
                f"{name}.load({self._arguments(str(buffer), expr)}, {print_index(ahead)});"
            )
        return self.place(name)

    def store(
        self, buffer: str, expr: sympy.Expr, dtype: torch.dtype, known: set[str]
    ) -> str | None:
        """The address to store to instead, or None. Other accesses of the buffer would miss values
        that are still in the tile.
        """
        if buffer not in self.once or not self._jumps(expr, known) or len(self.names) >= MOST:
            return None
        name = self._new(buffer, expr, dtype)
        self.after.add(f"{name}.store({self._arguments(buffer, expr)});")
        return self.place(name)

    def ask_for(self, buffer: str, expr: sympy.Expr, known: set[str]) -> None:
        """Prefetches a contiguous access one tile ahead."""
        free = {symbol.name for symbol in expr.free_symbols}  # type: ignore[attr-defined]
        row = self.row.symbol
        if (
            stride_along(expr, self.axis.symbol) == 1
            and row in expr.free_symbols
            and not free & known
        ):
            places = {row: identifier(row.name), self.axis.symbol: "begin"}
            places[self.towards.symbol] = f"({places[self.towards.symbol]} + TILE)"
            later = print_index(expr, places)
            line = f"ask_for<{int(buffer in self.stored)}>({identifier(buffer)} + {later});"
            if line not in self.ahead.lines:
                self.ahead.add(line)

    def _jumps(self, expr: sympy.Expr, known: set[str]) -> bool:
        along = stride_along(expr, self.axis.symbol)
        free = {symbol.name for symbol in expr.free_symbols}  # type: ignore[attr-defined]
        return (
            along is not None
            and along not in (0, 1)
            and stride_along(expr, self.row.symbol) == 1
            and not free & known
        )

    def _new(self, buffer: str, expr: sympy.Expr, dtype: torch.dtype | None) -> str:
        name = f"tile{len(self.names)}"
        self.names[buffer, expr] = name
        self.before.lines.insert(0, f"tile<{c_type(dtype)}> {name};")
        return name

    def _arguments(self, buffer: str, expr: sympy.Expr) -> str:
        start = print_index(expr, {self.axis.symbol: "begin", self.row.symbol: "top"})
        stride = stride_along(expr, self.axis.symbol)
        assert stride is not None
        return f"{identifier(buffer)} + {start}, {print_index(stride)}, end - begin, bottom - top"
