"""Column reductions: rows outside, columns inside, so that memory is read in order
(``Plan.columns``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loopir import Body, Kernel

from .collective import COMBINERS
from .dtypes import c_type
from .emitter import Emitter, write_block_bounds
from .instructions import emit_instruction
from .kernel_plan import COLUMNS, Plan
from .names import identifier
from .printer import print_index
from .scope import Binding, Block, for_loop, range_loop

Open = Callable[[Emitter, Block], None]


def write_columns(
    kernel: Kernel, plan: Plan, rows: Block, unit: Block, open_lanes: Open, write_inner: Callable
) -> None:
    """Writes one unit: for each group of rows and each vector of columns the inner body, then, once
    per column, the bodies after it.

    ``rows`` is the block before all units; ``open_lanes`` opens the vector loop, and
    ``write_inner`` writes the inner body into it.
    """
    number = next(i for i, body in enumerate(kernel.bodies) if body.inner)
    body, axis = kernel.bodies[number], plan.axis
    assert axis is not None
    lane = f"{identifier(axis.symbol.name)} - begin"
    write_block_bounds(plan, unit)
    results = [step for step in body.instructions if step.op == "reduce"]
    for step in results:
        kind = COMBINERS[str(step.args[0])]
        rows.add(f"columns<{kind}, {c_type(step.dtype)}> {_state(step.result)}({COLUMNS});")
        unit.add(f"{_state(step.result)}.reset(end - begin);")
    depth = {item.symbol.name: 0 for item in (*plan.outer, *plan.inner[:-1])}
    block = unit
    for item in plan.inner[:-1]:
        block = block.open(range_loop(item))
    block = block.open(for_loop("row_block", "0", print_index(plan.inner[-1].extent), "GROUP"))
    inside = Emitter(kernel, replace(plan, inner=plan.inner[-1:]), [block], dict(depth))
    open_lanes(inside, block)
    _emit(inside, kernel.bodies[:number])
    write_inner(inside, body)
    for step in results:
        # a sum of loop invariants is the same for all columns
        total = inside.as_vector(inside.bindings[str(step.result)])
        inside.levels[1].add(f"{_state(step.result)}.merge<W>({lane}, {total}, n);")
        block.add(f"{_state(step.result)}.next();")
    inside.levels[1].add("return 0;")
    last = Block()
    unit.add(last)
    after = Emitter(kernel, plan, [last], {item.symbol.name: 0 for item in plan.outer})
    open_lanes(after, last)
    _emit(after, kernel.bodies[:number])
    for step in results:
        name = identifier(str(step.result))
        after.levels[1].add(f"const auto {name} = {_state(step.result)}.get<W>({lane}, n);")
        assert step.result is not None and step.dtype is not None
        after.bindings[step.result] = Binding(name, step.dtype, True, 1)
    _emit(after, kernel.bodies[number + 1 :])
    after.levels[1].add("return 0;")


def _state(result: str | None) -> str:
    return f"{identifier(str(result))}_columns"


def _emit(emitter: Emitter, bodies: tuple[Body, ...]) -> None:
    for body in bodies:
        for step in body.instructions:
            emit_instruction(emitter, step)
