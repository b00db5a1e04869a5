"""Writes a kernel as one C++ function: loops around the emitted bodies, and an entry that
distributes units over threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import sympy
import torch
from loopir import Body, Kernel, Range, decide, format_kernel, kernel_label

from inductor_cpp.heap import LARGEST_BLOCK
from inductor_cpp.kernels.passes.exponentials import divide_exponentials
from inductor_cpp.kernels.passes.reuse import plan_row_cache

from .access import accessed_once, as_expr
from .column_sums import write_columns
from .dtypes import c_type
from .emitter import Emitter, write_block_bounds
from .instructions import emit_cached, emit_instruction
from .kernel_plan import (
    COLUMNS,
    SHARE,
    Plan,
    Role,
    fetching_pass,
    hint_of,
    lane_count,
    make_plan,
    next_row,
    row_length,
)
from .names import identifier, sums_of
from .printer import print_index
from .scope import Block, for_loop, range_loop
from .tiles import Tiles


def kernel_text(kernel: Kernel) -> str:
    """The C++ source of ``kernel``: ``NAME_units`` runs a range of units, ``NAME`` (C linkage) is
    the entry.

    The entry takes the buffers' addresses and then the sizes as int64; it returns non-zero for an
    index out of range.
    """
    comments, kernel = _comments(kernel), divide_exponentials(kernel)
    plan = make_plan(kernel)
    name = identifier(kernel.name)
    parameters = [
        *(_parameter(buffer) for buffer in kernel.buffers),
        *(f"i64 {identifier(size.name)}" for size in kernel.sizes),
    ]
    arguments = [identifier(item.name) for item in (*kernel.buffers, *kernel.sizes)]
    share = [SHARE] if plan.step == SHARE else []
    sums = [f"f64* {sums_of(buffer)}_part" for buffer in plan.sums]
    signature = ", ".join(
        [
            "i64 first",
            "i64 last",
            "bool shared",
            *(f"i64 {name}" for name in share),
            *sums,
            *parameters,
        ]
    )
    units = Block(
        header=f"static __attribute__((noinline)) int {name}_units({signature}) {{", footer="}"
    )
    _write_units(kernel, plan, units)
    entry = Block(header=f'extern "C" int {name}({", ".join(parameters)}) {{', footer="}")
    bounds = (
        ["units * chunk / chunks", "units * (chunk + 1) / chunks"]
        if plan.sums
        else ["first", "last"]
    )
    length = print_index(row_length(plan))
    parts = [f"{sums_of(buffer)}_parts.data + chunk * ({length})" for buffer in plan.sums]
    shared_flag = "false" if plan.owned else "shared"
    call = f"{name}_units({', '.join([*bounds, shared_flag, *share, *parts, *arguments])})"
    work = print_index(plan.work)
    if share:
        assert plan.axis is not None
        shared = f"share_of<{lane_count(plan.width)}>({print_index(plan.axis.extent)}, {work})"
        entry.add(
            f"const i64 share = {f'index_min({COLUMNS}, {shared})' if plan.columns else shared};"
        )
    _request_large_pages(kernel, entry)
    entry.add(f"const i64 units = {_unit_count(plan)}, work = {work};")
    if plan.sums:
        _write_chunks(plan, length, call, entry)
    else:
        entry.add(
            f"return parallel(units, work, [&](i64 first, i64 last, bool shared) LAMBDA {{ return "
            f"{call}; }});"
        )
    return "\n".join([*comments, *units.render(), *entry.render(), ""])


def _request_large_pages(kernel: Kernel, entry: Block) -> None:
    for buffer in kernel.buffers:
        size = as_expr(buffer.numel) * buffer.dtype.itemsize
        if buffer.role != "out":
            continue
        is_large = hint_of(kernel, size) > LARGEST_BLOCK
        if decide("large pages", lambda b=buffer: f"{kernel_label(kernel)} {b.name}", is_large):
            entry.add(
                f"want_large_pages<{LARGEST_BLOCK}>({identifier(buffer.name)}, "
                f"{print_index(size)});"
            )


def _write_chunks(plan: Plan, length: str, call: str, entry: Block) -> None:
    """Splits the units into chunks, one per thread; the chunks' sums are added up in order."""
    entry.add(
        f"const i64 chunks = "
        f"{'chunks_of' if plan.role is Role.REDUCTION else 'threads_for'}(units, work);"
    )
    for buffer in plan.sums:
        entry.add(f"scratch<f64> {sums_of(buffer)}_parts(chunks * ({length}));")
    header = "if (int error = parallel(chunks, work, [&](i64 first, i64 last, bool shared) LAMBDA {"
    inside = entry.open(header, "})) return error;")
    inside.add(
        f"for (i64 chunk = first; chunk < last; ++chunk) if (int error = {call}) return error;"
    )
    inside.add("return 0;")
    for buffer in plan.sums:
        entry.add(
            f"add_parts({identifier(buffer)}, {sums_of(buffer)}_parts.data, chunks, {length});"
        )
    entry.add("return 0;")


def _comments(kernel: Kernel) -> list[str]:
    lines = format_kernel(kernel).splitlines()
    return [
        f"// {line.lstrip('# ') if line.startswith('#') else line}".rstrip().removesuffix("\\")
        for line in lines
    ]


def _parameter(buffer) -> str:
    const = "const " if buffer.role == "in" else ""
    return f"{const}{c_type(buffer.dtype)}* {identifier(buffer.name)}"


def _blocks(plan: Plan) -> str:
    """The number of units into which the vector axis is split."""
    assert plan.axis is not None
    size = f"({plan.step})"
    return f"(({print_index(plan.axis.extent)} + {size} - 1) / {size})"


def _unit_loops(plan: Plan) -> list[tuple[str, str]]:
    """(variable, extent) of the loops over units, slowest first."""
    if plan.owned:
        return [("block", _blocks(plan))]
    loops = [(identifier(item.symbol.name), print_index(item.extent)) for item in plan.outer]
    if plan.tiled:
        loops[-1] = ("row_block", f"(({print_index(plan.outer[-1].extent)} + TILE - 1) / TILE)")
    if plan.step is not None:
        loops.insert(len(loops) - 1 if plan.block_first else len(loops), ("block", _blocks(plan)))
    return loops


def _unit_count(plan: Plan) -> str:
    factors = [f"i64({extent})" for _, extent in _unit_loops(plan)]
    if plan.role is Role.POINTS and plan.step is None:
        assert plan.axis is not None
        factors.append(f"i64({print_index(plan.axis.extent)} > 0)")
    return " * ".join(factors) or "1"


def _write_units(kernel: Kernel, plan: Plan, target: Block) -> None:
    if plan.role is not Role.NONE:
        target.add(f"constexpr int W = {lane_count(plan.width)};")
    loops = _unit_loops(plan)
    rows = Block()
    target.add(rows)
    unit = target
    if len(loops) == 1:
        variable = loops[0][0]
        unit = target.open(for_loop(variable, "first", "last"))
    elif loops:
        unit = _open_odometer(loops, target)
    for item in plan.outer if plan.owned else ():
        unit = unit.open(range_loop(item))
    if plan.columns:
        write_columns(kernel, plan, rows, unit, _open_lanes, _write_inner)
        target.add("return 0;")
        return
    depth = {item.symbol.name: 0 for item in plan.outer}
    emitter = Emitter(kernel, plan, [unit], depth, row_cache=plan_row_cache(kernel, plan))
    rows.lines += [_row(emitter, row, dtype) for row, dtype in emitter.row_cache.dtypes.items()]
    if plan.role is Role.POINTS:
        _open_lanes(emitter, _open_tile(emitter, unit) if plan.tiled else _open_block(plan, unit))
    fetching = fetching_pass(kernel)
    for body in kernel.bodies:
        if body.inner:
            asked = next_row(kernel, plan) if body is fetching else ()
            _write_inner(emitter, body, asked)
        else:
            for step in body.instructions:
                emit_instruction(emitter, step)
    if plan.role is Role.POINTS:
        emitter.levels[1].add("return 0;")
    _write_sums(plan, rows, unit, target)
    target.add("return 0;")


def _write_sums(plan: Plan, rows: Block, unit: Block, target: Block) -> None:
    """Writes what a thread's units add to ``plan.sums``: directly into the thread's part, or
    through a row of its own.
    """
    for buffer in plan.sums:
        name, length = sums_of(buffer), print_index(row_length(plan))
        if plan.role is Role.POINTS:
            rows.add(f"for (i64 i = 0; i < {length}; ++i) {name}_part[i] = 0;")
            continue
        rows.add(f"columns<plus, f32> {name}({length});")
        rows.add(f"{name}.reset({length});")
        unit.add(f"{name}.next();")
        target.add(f"{name}.write({name}_part);")


def _open_odometer(loops: list[tuple[str, str]], target: Block) -> Block:
    """Computes the loop variables from the first unit's number and increments them afterwards: a
    division per unit would cost more than a short row.
    """
    target.add("i64 rest = first;")
    for variable, extent in reversed(loops[1:]):
        target.add(f"i64 {variable} = rest % {_atom(extent)}; rest /= {_atom(extent)};")
    target.add(f"i64 {loops[0][0]} = rest;")
    loop = target.open(for_loop("unit", "first", "last"))
    inside = Block()
    loop.add(inside)
    carry = f"++{loops[0][0]};"
    for variable, extent in loops[1:]:
        carry = f"if (++{variable} == {extent}) {{ {variable} = 0; {carry} }}"
    loop.add(carry)
    return inside


def _atom(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _open_lanes(emitter: Emitter, unit: Block) -> None:
    """The vector loop of POINTS, as a lambda called with the first lane and the lanes that
    exist.
    """
    plan = emitter.plan
    assert plan.axis is not None
    extent, variable = print_index(plan.axis.extent), identifier(plan.axis.symbol.name)
    begin, end = ("0", extent) if plan.step is None else ("begin", "end")
    prelude = Block()
    unit.add(prelude)
    header = (
        f"{_lanes_call('lanes', plan.axis.extent)}({begin}, {end}, [&](i64 {variable}, auto n) "
        f"LAMBDA {{"
    )
    emitter.levels[0] = prelude
    emitter.levels.append(unit.open(f"if (int error = {header}", "})) return error;"))
    emitter.symbol_depth[plan.axis.symbol.name] = 1
    emitter.count = "n"


def _open_block(plan: Plan, unit: Block) -> Block:
    """A unit's part of the vector axis."""
    if plan.step is not None:
        write_block_bounds(plan, unit)
    return unit


def _open_tile(emitter: Emitter, unit: Block) -> Block:
    """A square of the vector axis and the last outer loop, with tiles around the loop over its
    rows.
    """
    plan, row = emitter.plan, emitter.plan.outer[-1]
    assert plan.axis is not None
    _open_block(plan, unit)
    variable = identifier(row.symbol.name)
    unit.add(
        f"const i64 top = row_block * TILE, bottom = index_min(top + TILE, "
        f"{print_index(row.extent)});"
    )
    before, loop, after = (
        Block(),
        Block(header=for_loop(variable, "top", "bottom"), footer="}"),
        Block(),
    )
    for block in (before, loop, after):
        unit.add(block)
    loop.add(ahead := Block())
    emitter.tiles = Tiles(
        plan.axis,
        row,
        row if plan.block_first else plan.axis,
        emitter.stored,
        accessed_once(emitter.kernel),
        before,
        ahead,
        after,
    )
    return loop


def _lanes_call(name: str, extent: sympy.Expr) -> str:
    """``lanes<W, D>`` with D a number that divides the trip count (a block's size is a multiple of
    W or the rest).
    """
    divisor = int(extent) if extent.is_Integer and extent > 0 else 1
    divisor = math.gcd(divisor, 1 << 12)
    return f"{name}<W, {divisor}>" if divisor > 1 else f"{name}<W>"


def _write_inner(
    emitter: Emitter, body: Body, asked: Iterable[tuple[str, sympy.Expr]] = ()
) -> None:
    """One inner body: its reduction loops, with what does not depend on them hoisted out. ``asked``
    are places to fetch.
    """
    plan, base = emitter.plan, len(emitter.levels) - 1
    outer_levels, outer_count = list(emitter.levels), emitter.count
    emitter.inner, emitter.epilogue, emitter.cascades = True, [], []
    loops = [Block() for _ in plan.inner]
    emitter.levels += loops
    lanes_inside = plan.role is Role.REDUCTION
    emitter.count = "n" if lanes_inside or plan.role is Role.POINTS else "full{}"
    for number, item in enumerate(plan.inner):
        emitter.symbol_depth[item.symbol.name] = base + 1 + number
    emitter.guards = _guards(plan, base)
    for buffer, place in asked:
        loops[-1].add(f"ask_for_lanes<W>({identifier(buffer)} + {print_index(place)});")
    for step in body.instructions:
        emit_cached(emitter, step)
    nest = _close_loops(emitter, loops)
    outer_levels[-1].add(nest)
    for line in emitter.epilogue:
        outer_levels[-1].add(line)
    emitter.levels, emitter.count = outer_levels, outer_count
    emitter.inner, emitter.guards = False, {}


def _row(emitter: Emitter, row: str, dtype: torch.dtype) -> str:
    length = print_index(row_length(emitter.plan))
    return f"scratch<{c_type(dtype)}> {row}({length});"


def _guards(plan: Plan, base: int) -> dict[int, str]:
    """For loads moved out of loops that may not run: the condition under which they are in
    bounds.
    """
    guards: dict[int, str] = {}
    for depth in range(base + len(plan.inner)):
        loops = plan.inner[max(0, depth - base) :]
        conditions = [
            f"{print_index(item.extent)} > 0"
            for item in loops
            if item.extent.is_positive is not True
        ]
        if conditions:
            guards[depth] = " && ".join(conditions)
    return guards


def _close_loops(emitter: Emitter, loops: list[Block]) -> Block:
    """Nests the reduction loops' blocks, innermost last, and flushes cascaded sums now and then."""
    plan = emitter.plan
    flushes = [f"{name}.flush();" for name in emitter.cascades]
    nest = Block()
    for number in reversed(range(len(loops))):
        item, block = plan.inner[number], loops[number]
        innermost = number == len(loops) - 1
        outer = Block()
        if innermost and plan.role is Role.REDUCTION:
            _wrap_lanes(item, block, outer, flushes)
        elif innermost and plan.columns:
            end = f"index_min(row_block + GROUP, {print_index(item.extent)})"
            outer.enclose(block, for_loop(identifier(item.symbol.name), "row_block", end))
        elif innermost and flushes:
            _wrap_blocked(item, block, outer, flushes)
        else:
            outer.enclose(block, range_loop(item))
        if number:
            loops[number - 1].add(outer)
        else:
            nest = outer
    return nest


def _wrap_lanes(item: Range, block: Block, outer: Block, flushes: list[str]) -> None:
    variable, extent = identifier(item.symbol.name), print_index(item.extent)
    call = _lanes_call("lanes_blocked" if flushes else "lanes", item.extent)
    header = f"if (int error = {call}(0, {extent}, [&](i64 {variable}, auto n) LAMBDA {{"
    flush = f", [&]() LAMBDA {{ {' '.join(flushes)} }}" if flushes else ""
    block.add("return 0;")
    outer.enclose(block, header, f"}}{flush})) return error;")


def _wrap_blocked(item: Range, block: Block, outer: Block, flushes: list[str]) -> None:
    variable, extent = identifier(item.symbol.name), print_index(item.extent)
    start = f"{variable}_block"
    blocked = outer.open(for_loop(start, "0", extent, "BLOCK"))
    blocked.enclose(block, for_loop(variable, start, f"index_min({start} + BLOCK, {extent})"))
    blocked.lines += flushes
