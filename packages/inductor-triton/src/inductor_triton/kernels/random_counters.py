"""The counters of random numbers: one per element, or one per Philox block of several elements."""

from __future__ import annotations

import sympy
import torch
from loopir import FloorDiv, Mod, symbol

from inductor_triton.spec import INT32_LIMIT

from .emitter import Dims, Emitter
from .indexing import integer, stride
from .tiling import Axis


def counters(emitter: Emitter, place: sympy.Expr, first: int) -> tuple[str, Dims]:
    """The counter ``place + first`` of each element, and the axes along which it varies."""
    text, dims, _ = emitter.index(place)
    return f"({_plus(emitter, text, first)}).to(tl.int64)", dims


def blocks(emitter: Emitter, place: sympy.Expr, first: int, each: int) -> tuple[str, Dims] | None:
    """A call for the random numbers at ``place + first``, one Philox block per ``each`` elements;
    and the axes along which it varies.

    The call has format fields for its name and first argument. None if no axis has consecutive
    positions that start at a multiple of ``each``.
    """
    rest = emitter.by_flat_position(place)
    if first % each:
        return None
    for axis in emitter.tiling.axes:
        index = (
            _first_of_each(emitter, rest, axis, each)
            if axis.block % each == 0 and axis.name in emitter.block_starts
            else None
        )
        if index is None:
            continue
        text, dims, _ = emitter.index(index)
        found = _plus(emitter, f"({text} >> {each.bit_length() - 1})", first, each)
        if axis.position == axis.rank - 1:
            return f"{{}}{each}({{}}, {found})", dims
        return f"tl.trans({{}}{each}({{}}, tl.trans({found})))", dims
    return None


def _plus(emitter: Emitter, text: str, value: int, divisor: int = 1) -> str:
    """``text + value // divisor``, in 64 bits if the code has that number and it needs them."""
    number = emitter.number(value, divisor)
    if number.isdigit() and int(number) > INT32_LIMIT:
        text = f"({text}).to(tl.int64)"
    return text if number == "0" else f"{text} + {number}"


def _first_of_each(emitter: Emitter, expr: sympy.Expr, axis: Axis, each: int) -> sympy.Expr | None:
    """``expr`` at every ``each``-th position along ``axis``; None unless the positions in between
    are consecutive and start at a multiple of ``each``.
    """
    flat = next(
        (flat for loops, flat in emitter.flat_loops if loops == axis.loops), axis.loops[-1].symbol
    )
    last = axis.loops[-1]
    along = flat if flat in expr.free_symbols else last.symbol
    others = expr.free_symbols - {along}
    steps = [stride(expr, other) for other in others]  # type: ignore[arg-type]
    ends = along is last.symbol and len(axis.loops) > 1 and integer(last.extent % each) != 0
    if (
        stride(expr, along) != 1
        or ends
        or any(step is None or integer(step % each) != 0 for step in steps)
    ):
        return None
    start, expand = emitter.block_starts[axis.name]
    text = f"({start}{each} * tl.arange(0, {axis.block // each}){expand}){emitter.index_cast}"
    place = emitter.define(f"{axis.name}_each", text, frozenset(axis.name), torch.int64)
    lanes = symbol(place.text)
    emitter.symbols[lanes] = place
    points: dict[sympy.Symbol, sympy.Expr] = {flat: lanes}
    inner: sympy.Expr = sympy.Integer(1)
    for number, item in reversed([*enumerate(axis.loops)] if len(axis.loops) > 1 else []):
        if emitter.symbols[item.symbol].dims:
            whole: sympy.Expr = FloorDiv(lanes, inner)  # type: ignore[assignment]
            points[item.symbol] = Mod(whole, item.extent) if number else whole  # type: ignore[assignment]
        inner = sympy.expand(inner * item.extent)
    return expr.xreplace(points)  # type: ignore[return-value]
