"""How the loops of a reduction are cut into chunks, and what is computed within one.

Chunks of a known length are equally long. Where it is a symbol, the number of chunks is fixed and
the last one may be shorter, or several may be empty: loads beyond the end are masked and sums get
zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import sympy
import torch
from loopir import Instruction, Kernel, Range, Value, ceil_div, symbol

from inductor_triton.kernels.heuristics import TILE_ROWS
from inductor_triton.kernels.indexing import integer, map_index
from inductor_triton.kernels.tiling import hint

SMALLEST_CHUNK = 32
LONG_ROW = 4096
"""Length that a symbolic reduction is taken to have at least: what was seen first may be short."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """The loops over chunks and those within a chunk, and the symbols of the reduction in terms of
    both. ``last``: the loop of the reduction beyond whose end the last chunk may reach.
    """

    outer: tuple[Range, ...]
    inner: tuple[Range, ...]
    replaced: dict[sympy.Symbol, sympy.Expr]
    last: Range | None = None

    @property
    def length(self) -> int:
        """The points of a chunk, if known."""
        return prod(int(item.extent) for item in self.inner)

    def within(self, instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        """The instructions of the reduction's body for a chunk."""
        if not self.replaced:
            return instructions
        moved = tuple(
            map_index(lambda e: sympy.expand(e.subs(self.replaced, simultaneous=True)), step)
            for step in instructions
        )
        if self.last is None or not moved:
            return moved
        inside, steps = _inside(self.last, self.replaced)
        varying = {item.symbol.name for item in (*self.outer, *self.inner)}
        for step in moved:
            if step.op == "load" and not varying.isdisjoint(map(str, step.args[1].free_symbols)):  # type: ignore[union-attr]
                steps += _masked(step, inside)
            elif step.op == "reduce":
                steps += _with_zeros(step, inside)
            else:
                steps.append(step)
            varying.add(str(step.result))
        return tuple(steps)


def _inside(
    item: Range, replaced: Mapping[sympy.Symbol, sympy.Expr]
) -> tuple[Value, list[Instruction]]:
    """Whether a place lies before the end of a loop, and how that is computed."""
    place, end, inside = (f"{item.symbol.name}_{what}" for what in ("place", "end", "inside"))
    return Value(inside), [
        Instruction(place, "index_expr", (replaced[item.symbol],), torch.int64),
        Instruction(end, "index_expr", (item.extent,), torch.int64),
        Instruction(inside, "lt", (Value(place), Value(end)), torch.bool),
    ]


def _masked(load: Instruction, inside: Value) -> list[Instruction]:
    buffer, index, mask, other = load.args
    if mask is None:
        return [replace(load, args=(buffer, index, inside, 0))]
    both = f"{load.result}_inside"
    return [
        Instruction(both, "and", (mask, inside), torch.bool),
        replace(load, args=(buffer, index, Value(both), other)),
    ]


def _with_zeros(step: Instruction, inside: Value) -> list[Instruction]:
    zero, value, dtype = f"{step.result}_zero", f"{step.result}_value", step.dtype
    assert dtype is not None
    number = 0.0 if dtype.is_floating_point else 0
    return [
        Instruction(zero, "constant", (number,), dtype),
        Instruction(value, "where", (inside, step.args[1], Value(zero)), dtype),
        replace(step, args=(step.args[0], Value(value))),
    ]


def with_long_rows(kernel: Kernel) -> Kernel:
    """The kernel as if the example call had reduced long rows."""
    hints, longest = dict(kernel.hints), _longest(kernel)
    length = prod(hint(kernel, item.extent) for item in kernel.reduction)
    if longest is None or length >= LONG_ROW:
        return kernel
    size = min(longest.extent.free_symbols, key=str)
    hints[size] = -(-hint(kernel, size) * LONG_ROW // max(length, 1))  # type: ignore[index, arg-type]
    return replace(kernel, hints=tuple(hints.items()))


def _longest(kernel: Kernel) -> Range | None:
    """The longest loop of the reduction whose length is a symbol."""
    symbolic = [item for item in kernel.reduction if integer(item.extent) is None]
    return max(symbolic, key=lambda item: hint(kernel, item.extent), default=None)


def chunks_of_any_size(kernel: Kernel, wanted: int) -> Chunks | None:
    """``wanted`` chunks of a reduction with symbolic loops: equally long ones of a loop whose
    length is known, if there are about as many.
    """
    replaced: dict[sympy.Symbol, sympy.Expr] = {}
    for item in kernel.reduction:
        extent = integer(item.extent) or 1
        count = max(n for n in range(1, min(2 * wanted, extent) + 1) if extent % n == 0)
        if 2 * count >= wanted:
            chunk, rest = _cut(item, count, replaced)
            inner = tuple(rest if other is item else other for other in kernel.reduction)
            return Chunks((chunk,), inner, replaced)
    item = _longest(kernel)  # type: ignore[assignment]
    if item is None:
        return None
    chunk = Range(symbol(f"{item.symbol.name}_chunk"), sympy.Integer(wanted))
    length = ceil_div(item.extent, wanted)
    replaced[item.symbol] = sympy.expand(chunk.symbol * length + item.symbol)
    rest = replace(item, extent=length)
    inner = tuple(rest if other is item else other for other in kernel.reduction)
    return Chunks((chunk,), inner, replaced, item)


def chunks_of(kernel: Kernel, wanted: int) -> Chunks | None:
    """At least ``wanted`` chunks of one length, where there are as many."""
    reduction = kernel.reduction
    outer: list[Range] = []
    replaced: dict[sympy.Symbol, sympy.Expr] = {}
    for position, item in enumerate(reduction):
        extent, missing = int(item.extent), -(-wanted // prod(int(o.extent) for o in outer))
        inner = reduction[position + 1 :]
        if missing <= 1:
            return Chunks(tuple(outer), reduction[position:], replaced)
        if extent <= missing and prod(int(o.extent) for o in inner) >= SMALLEST_CHUNK:
            outer.append(item)
            continue
        room = extent * prod(int(o.extent) for o in inner) // SMALLEST_CHUNK
        counts = [n for n in range(1, min(2 * missing, room, extent) + 1) if extent % n == 0]
        even = [
            n
            for n in counts
            if extent // n * prod(int(o.extent) for o in inner) % SMALLEST_CHUNK == 0
        ]
        # prefer chunk lengths that blocks divide evenly: those need no masks
        count = max(even if 4 * max(even, default=0) > missing else counts, default=1)
        if count == 1:
            return Chunks(tuple(outer), reduction[position:], replaced) if outer else None
        chunk, rest = _cut(item, count, replaced)
        return Chunks((*outer, chunk), (rest, *inner), replaced)
    return None


def tiles(kernel: Kernel, most: int) -> Chunks | None:
    """At most ``most`` chunks, each of which a block of columns holds completely: then one read
    serves their mean and the squares about it.
    """
    first, *others = kernel.reduction
    extent = int(first.extent)
    lengths = [n for n in range(SMALLEST_CHUNK, TILE_ROWS + 1) if extent % n == 0]
    even = [n for n in lengths if n % SMALLEST_CHUNK == 0]
    count = extent // max(even or lengths, default=1)
    if others or not lengths or not 1 < count <= most:
        return None
    replaced: dict[sympy.Symbol, sympy.Expr] = {}
    chunk, rest = _cut(first, count, replaced)
    return Chunks((chunk,), (rest,), replaced)


def _cut(item: Range, count: int, replaced: dict[sympy.Symbol, sympy.Expr]) -> tuple[Range, Range]:
    """``item`` as a loop over ``count`` chunks and a loop within a chunk."""
    chunk = Range(symbol(f"{item.symbol.name}_chunk"), sympy.Integer(count))
    length = int(item.extent) // count
    replaced[item.symbol] = chunk.symbol * length + item.symbol
    return chunk, replace(item, extent=sympy.Integer(length))
