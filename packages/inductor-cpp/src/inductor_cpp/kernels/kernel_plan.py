"""Decisions before any text is written: which axis becomes vector lanes, how wide the vectors are,
and what one unit of work is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import sympy
import torch
from loopir import (
    Body,
    Instruction,
    Kernel,
    Range,
    choose,
    current_choices,
    example_value,
    flat_position,
    kernel_label,
)

from .access import accessed_once, accesses, as_expr, stride_along

HINT = 64
STEP = 4096
TILE = 64
LEAST_TILE = 16
COLUMNS = 1024
LEAST_ROWS = 64
ENOUGH_UNITS = 64
SHARE = "share"
WIDTHS = (1, 2, 4)
STEP_UNIT = 256
_FLAGS = ("transposed", "columns", "block_first")
_TEXT = re.compile(
    r"axis=(?P<axis>\w+) width=(?P<width>\d) step=(?P<step>\d+|none)(?P<flags>( \w+)*)"
)

HEAVY = frozenset("exp expm1 log log1p sin cos tanh erf uniform uniform16".split())
LIBM = frozenset(
    "tan asin acos atan sinh cosh lgamma pow atan2 log2 fmod remainder floordiv".split()
)
COMPARISONS = ("eq", "ne", "lt", "le")
ORDERED_REDUCTIONS = ("argmax", "argmin")


class Role(Enum):
    """Whether the vector axis is a range or a reduction loop."""

    POINTS = "along one of `ranges`: every lane is a point"
    REDUCTION = "along `reduction`: lanes accumulate partial results of one point"
    NONE = "no vectors"


@dataclass(frozen=True, slots=True)
class Plan:
    """``outer`` are the loops over units, slowest first, without the vector axis; ``inner`` the
    reduction loops, axis last. ``width`` counts leaves of LANES elements. ``step`` cuts the vector
    axis of POINTS into units (None: one unit holds it all); ``block_first`` puts those blocks
    outside the last outer loop; ``tiled`` cuts that loop as well, so that a unit is a tile, and the
    next tile lies along that loop if ``block_first``, else along the vector axis; ``columns`` runs
    the reduction outside the lanes of a unit, a group of rows at a time, with the columns' results
    so far in a scratch row; ``owned`` makes a unit a share of the vector axis with all outer loops
    inside, so that no two threads add to the same place. With step SHARE the entry cuts the vector
    axis by the number of threads. ``sums`` are buffers to which every row adds at the same places,
    one per position in the row: threads do so in memory of their own (with POINTS, a block of
    points adds its total).
    """

    role: Role
    axis: Range | None
    outer: tuple[Range, ...]
    inner: tuple[Range, ...]
    width: int
    step: str | None
    block_first: bool
    work: sympy.Expr
    tiled: bool = False
    columns: bool = False
    owned: bool = False
    sums: tuple[str, ...] = ()


def make_plan(kernel: Kernel) -> Plan:
    """The plan of ``kernel``; a kernel without a usable axis gets Role.NONE and scalar loops."""
    if current_choices() is None:
        return _plan(kernel, _preferred(kernel))
    preferred = _format(_preferred(kernel))
    is_possible = lambda text: _parsed(kernel, text) is not None  # noqa: E731
    text = choose("C++ plans", kernel_label(kernel), preferred, is_possible)
    found = _parsed(kernel, text)
    assert found is not None
    return _plan(kernel, found)


def _plan(kernel: Kernel, chosen: _Chosen) -> Plan:
    axis, work, width = chosen.axis, total_work(kernel), chosen.width
    if axis is None:
        return Plan(Role.NONE, None, kernel.ranges, kernel.reduction, 0, None, False, work)
    if axis in kernel.reduction:
        inner = (*(item for item in kernel.reduction if item != axis), axis)
        sums = _row_sums(kernel, inner)
        return Plan(Role.REDUCTION, axis, kernel.ranges, inner, width, None, False, work, sums=sums)
    outer = tuple(item for item in kernel.ranges if item != axis)
    if _adds_apart(kernel, axis):
        return Plan(Role.POINTS, axis, outer, (), width, SHARE, True, work, owned=True)
    transposed = _tiled_loop(kernel, outer) if chosen.transposed else None
    if transposed is not None:
        outer = (*(item for item in outer if item != transposed), transposed)
    inner = kernel.reduction
    reduces, columns = bool(inner), chosen.columns
    tiled = transposed is not None and not reduces
    if columns:
        step: str | None = str(COLUMNS) if outer else SHARE
    elif reduces:
        step = lane_count(width)
    else:
        step = str(TILE) if tiled else chosen.step
    block_first = transposed is not None and step is not None and not columns
    if tiled:
        block_first = chosen.block_first
    sums = () if columns else _row_sums(kernel, inner)
    return Plan(
        Role.POINTS, axis, outer, inner, width, step, block_first, work, tiled, columns, sums=sums
    )


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What rules of thumb say about a plan; the rest follows from the kernel. ``transposed``: units
    are cut along the tile axis, too; ``step`` of kernels that are neither that nor reduce.
    """

    axis: Range | None
    width: int = 0
    transposed: bool = False
    columns: bool = False
    step: str | None = None
    block_first: bool = False


def _preferred(kernel: Kernel) -> _Chosen:
    axis = choose_axis(kernel)
    if axis is None:
        return _Chosen(None)
    width = choose_width(kernel, axis)
    outer = tuple(item for item in kernel.ranges if item != axis)
    if axis in kernel.reduction or _adds_apart(kernel, axis):
        return _Chosen(axis, width)
    row = _tiled_loop(kernel, outer)
    columns = _can_be_columns(kernel) and _is_column_reduction(kernel, axis)
    if row is None or hint_of(kernel, row.extent) <= 1:
        return _Chosen(axis, width, columns=columns, step=_step(kernel, axis, outer))
    nearer = _rows_entered(kernel, row, axis) <= _rows_entered(kernel, axis, row)
    return _Chosen(axis, width, True, columns, _step(kernel, axis, outer), nearer)


def _format(chosen: _Chosen) -> str:
    axis = "none" if chosen.axis is None else chosen.axis.symbol.name  # type: ignore[attr-defined]
    flags = [name for name in _FLAGS if getattr(chosen, name)]
    step = "none" if chosen.step is None else chosen.step
    return " ".join([f"axis={axis}", f"width={chosen.width}", f"step={step}", *flags])


def _parsed(kernel: Kernel, text: str) -> _Chosen | None:
    """The choices that a text names; None where the kernel doesn't allow them."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    loops = {each.symbol.name: each for each in _axes(kernel)}  # type: ignore[attr-defined]
    axis = loops.get(found["axis"])
    step = None if found["step"] == "none" else found["step"]
    flags = {name: name in found["flags"].split() for name in _FLAGS}
    chosen = _Chosen(axis, int(found["width"]), step=step, **flags)
    if axis is None:
        return chosen if found["axis"] == "none" and chosen == _Chosen(None) else None
    outer = tuple(item for item in kernel.ranges if item != axis)
    fits = chosen.width in WIDTHS and (not chosen.transposed or _tiled_loop(kernel, outer))
    fits = fits and (not chosen.columns or (axis in kernel.ranges and _can_be_columns(kernel)))
    return chosen if fits and (step is None or int(step) % STEP_UNIT == 0 < int(step)) else None


def _tiled_loop(kernel: Kernel, outer: Iterable[Range]) -> Range | None:
    return next((item for item in outer if item.symbol == kernel.tile_axis), None)


def row_length(plan: Plan) -> sympy.Expr:
    """The elements of a row."""
    return point_count(plan.inner)


def point_count(ranges: Iterable[Range]) -> sympy.Expr:
    """The number of points of the ranges."""
    return math.prod((item.extent for item in ranges), start=sympy.Integer(1))


def lane_count(width: int) -> str:
    """Text of the elements in a vector of ``width`` leaves."""
    return f"{width} * LANES" if width > 1 else "LANES"


def hint_of(kernel: Kernel, expr: sympy.Expr) -> int:
    """An example value of a size expression."""
    return example_value(expr, dict(kernel.hints), HINT)


def choose_axis(kernel: Kernel) -> Range | None:
    """The axis that the scheduler chose, unless an order forbids it; else, and for scans, the one
    with the cheapest accesses.
    """
    candidates = {item.symbol: item for item in _axes(kernel)}
    named = candidates.get(kernel.vector_axis)  # type: ignore[arg-type]
    if named is not None:
        return named
    scored = [(_axis_score(kernel, item), item) for item in candidates.values()]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def _axes(kernel: Kernel) -> list[Range]:
    """The loops whose positions may be the lanes of a vector."""
    scans = any(step.op == "scan" for step in kernel.steps)
    if kernel.vector_axis is None and not scans:
        return []
    last_only = scans or any(
        step.op == "reduce" and step.args[0] in ORDERED_REDUCTIONS for step in kernel.steps
    )
    return [*kernel.ranges, *(kernel.reduction[-1:] if last_only else kernel.reduction)]


def _axis_score(kernel: Kernel, axis: Range) -> float:
    score = min(hint_of(kernel, axis.extent), 64) / 64
    for step, _ in accesses(kernel):
        stride = stride_along(as_expr(step.args[1]), axis.symbol)
        score += 2 if stride == 1 else 1 if stride == 0 else -2
    return score


def choose_width(kernel: Kernel, axis: Range) -> int:
    """Leaves per vector: more for short bodies (independent accumulators), fewer for long or wide
    ones (registers).
    """
    compared = _only_compared(kernel)
    steps = [step for step in varying_along(kernel, axis) if step.result not in compared]
    if any(step.op == "uniform" for step in steps):
        width = 4  # one Philox block gives four elements
    elif len(steps) > 60 or any(step.dtype in (torch.int64, torch.float64) for step in steps):
        width = 1
    elif (
        kernel.reduction and len(steps) <= 10 and not any(step.op in HEAVY | LIBM for step in steps)
    ):
        width = 4
    else:
        width = 2
    if axis.extent.is_Integer:
        while width > 1 and int(axis.extent) <= 8 * width:
            width //= 2
    return width


def varying_along(kernel: Kernel, axis: Range) -> list[Instruction]:
    """Instructions that differ along ``axis``, but for indirect indices."""
    names: set[str] = {axis.symbol.name}
    varying: list[Instruction] = []
    for step in kernel.steps:
        if not names.isdisjoint(step.reads):
            names |= {step.result} if step.result else set()
            varying += [step] if step.op != "indirect" else []
    return varying


def _only_compared(kernel: Kernel) -> set[str]:
    """Index values that only comparisons use; ``instructions`` compares lane numbers instead."""
    other = {name for step in kernel.steps if step.op not in COMPARISONS for name in step.reads}
    return {step.result for step in kernel.steps if step.result and step.op == "index_expr"} - other


def cost(step: Instruction) -> int:
    """Work of one instruction in element operations."""
    return 8 if step.op in HEAVY else 24 if step.op in LIBM else 1


def total_work(kernel: Kernel) -> sympy.Expr:
    """Element operations of one launch, as a size expression."""
    inner = sum(cost(step) for body in kernel.bodies if body.inner for step in body.instructions)
    outer = sum(map(cost, kernel.steps)) - inner
    return sympy.expand(
        point_count(kernel.ranges) * (outer + inner * point_count(kernel.reduction))
    )


def _row_sums(kernel: Kernel, inner: tuple[Range, ...]) -> tuple[str, ...]:
    """Float32 buffers that the kernel adds to, once, at the position in the row."""
    place, once = flat_position(inner), accessed_once(kernel)
    plain = {
        item.name for item in kernel.buffers if item.dtype is torch.float32 and item.name in once
    }
    return tuple(
        str(step.args[0])
        for step, inside in accesses(kernel)
        if inside and step.op == "store" and step.args[3] == "add" and step.args[0] in plain
        if sympy.expand(as_expr(step.args[1]) - place) == 0
    )


def _adds_apart(kernel: Kernel, axis: Range) -> bool:
    """Whether the kernel adds to memory at addresses that differ for different positions along
    ``axis``.
    """
    stores = [step for step, _ in accesses(kernel) if step.op == "store"]
    if kernel.reduction or not any(step.args[3] == "add" for step in stores):
        return False
    return all(
        _is_last_place(as_expr(step.args[1]), axis) for step in stores if step.args[3] == "add"
    )


def _is_last_place(expr: sympy.Expr, axis: Range) -> bool:
    """Whether ``expr`` is ``axis`` plus a multiple of its extent."""
    rest = sympy.expand(expr - axis.symbol)
    if axis.symbol in rest.free_symbols or axis.extent == 0:
        return False
    return all(sympy.Mod(term, axis.extent) == 0 for term in sympy.Add.make_args(rest))


def _is_column_reduction(kernel: Kernel, axis: Range) -> bool:
    """Whether rows and columns are many enough to read memory in order."""
    rows = math.prod(hint_of(kernel, item.extent) for item in kernel.reduction)
    return hint_of(kernel, axis.extent) >= 2 * LEAST_TILE and rows >= LEAST_ROWS


def _can_be_columns(kernel: Kernel) -> bool:
    """Whether the kernel is one pass over rows that ends in plain reductions, one per column."""
    inner = [body for body in kernel.bodies if body.inner]
    if len(inner) != 1:
        return False
    before = kernel.bodies[: kernel.bodies.index(inner[0])]
    ends = [step for step in inner[0].instructions if step.op == "reduce"]
    if (
        any(step.op in ("store", "indirect") for body in before for step in body.instructions)
        or not ends
    ):
        return False
    if any(step.op in ("store", "scan", "indirect") for step in inner[0].instructions):
        return False
    return not any(
        step.args[0] in ORDERED_REDUCTIONS or step.dtype is torch.float64 for step in ends
    )


def _step(kernel: Kernel, axis: Range, outer: tuple[Range, ...]) -> str | None:
    units = math.prod(hint_of(kernel, item.extent) for item in outer)
    if units >= ENOUGH_UNITS or (axis.extent.is_Integer and int(axis.extent) <= STEP):
        return None
    return str(STEP)


def _rows_entered(kernel: Kernel, towards: Range, along: Range) -> int:
    """The distance between rows that a step of ``towards`` enters, summed over the accesses that
    are contiguous along ``along``. Distant rows cost a page each and share few cache sets, so the
    next tile lies where the distance is less.
    """
    sizes = {buffer.name: buffer.dtype.itemsize for buffer in kernel.buffers}
    found = [(step.args[0], as_expr(step.args[1])) for step, _ in accesses(kernel)]
    strides = [
        (name, stride_along(expr, towards.symbol))
        for name, expr in found
        if stride_along(expr, along.symbol) == 1
    ]
    return sum(
        sizes[str(name)] * abs(hint_of(kernel, stride))
        for name, stride in strides
        if stride is not None
    )


def fetching_pass(kernel: Kernel) -> Body | None:
    """The pass over a row during which the next row is fetched: of several the first with much
    arithmetic, else the last.
    """
    passes = [body for body in kernel.bodies if body.inner]
    heavy = (body for body in passes if any(cost(step) > 1 for step in body.instructions))
    return next(heavy, passes[-1]) if len(passes) > 1 else None


def next_row(kernel: Kernel, plan: Plan) -> list[tuple[str, sympy.Expr]]:
    """Where the next row will be read in order."""
    if plan.role is not Role.REDUCTION or plan.axis is None or not plan.outer:
        return []
    row, read = plan.outer[-1].symbol, {item.name for item in kernel.buffers if item.role == "in"}
    known = {item.symbol for item in (*plan.outer, *plan.inner)} | set(kernel.sizes)
    found = {}
    for step, inner in accesses(kernel):
        expr = as_expr(step.args[1])
        if (
            not inner
            or step.args[0] not in read
            or row not in expr.free_symbols
            or not expr.free_symbols <= known
        ):
            continue
        if stride_along(expr, plan.axis.symbol) == 1:
            found[str(step.args[0]), expr.xreplace({row: row + 1})] = None
    return list(found)
