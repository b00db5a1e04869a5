"""Removes reductions that are not needed: sums of one-hot rows, and loops over rows that have
nothing to reduce.

The gradient of a loss picks one element of each row, so it sums ``where(r == target, value, 0)``
over a row: the result is ``value`` if the target is an index of the row. A kernel that has no
reductions left becomes pointwise over both kinds of loops.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from loopir import (
    Body,
    Instruction,
    Kernel,
    Value,
    call,
    definitions,
    remove_dead,
    steps_of,
    with_blocks,
    write_call,
)

from inductor_triton.kernels.indexing import integer

MOST_REPEATED = 24
"""Instructions of outer bodies that a pointwise kernel may repeat for each element of a row."""


def simplified(kernel: Kernel) -> Kernel:
    """``kernel``, or an equivalent one that does less work."""
    bodies = list(kernel.bodies)
    for place, body in enumerate(bodies):
        if body.inner and place and not bodies[place - 1].inner:
            bodies[place - 1], bodies[place] = _pick_one_hot(kernel, bodies[place - 1], body)
    bodies = [_round_branches(body) if body.inner else body for body in bodies]
    blocks = remove_dead([body.instructions for body in bodies])
    return _without_rows(replace(kernel, bodies=with_blocks(bodies, blocks)))


def _round_branches(body: Body) -> Body:
    """Moves casts of a selection between two per-row values into its branches, so that they run
    once per row.
    """
    known = definitions(body.instructions)
    fixed = {name for name, step in known.items() if step.op == "constant"}
    steps: list[Instruction] = []
    for step in body.instructions:
        chosen = _defined(step.args[0], known) if step.op == "cast" else None
        if (
            chosen is not None
            and chosen.op == "where"
            and all(str(a) in fixed or str(a) not in known for a in chosen.args[1:])
        ):
            names = [f"{step.result}_branch{number}" for number in range(2)]
            steps += [
                replace(step, result=name, args=(arg,)) for name, arg in zip(names, chosen.args[1:])
            ]
            step = replace(step, op="where", args=(chosen.args[0], *map(Value, names)))
            known |= {str(step.result): step} | {name: steps[-1] for name in names}
            fixed |= {*names}
        steps.append(step)
    return Body(True, tuple(steps))


def _pick_one_hot(kernel: Kernel, outer: Body, inner: Body) -> tuple[Body, Body]:
    """Moves sums of one-hot rows from ``inner`` to ``outer`` if the picked value and the index are
    known there.
    """
    if len(kernel.reduction) != 1 or integer(kernel.reduction[0].extent) is None:
        return outer, inner
    inside = definitions(inner.instructions)
    outside = definitions(outer.instructions)
    moved: list[Instruction] = []
    kept: list[Instruction] = []
    for step in inner.instructions:
        found = _one_hot(kernel, step, inside, outside)
        kept += [] if found else [step]
        moved += found
    return Body(False, (*outer.instructions, *moved)), Body(True, tuple(kept))


def _one_hot(
    kernel: Kernel,
    step: Instruction,
    inside: dict[str, Instruction],
    outside: dict[str, Instruction],
) -> list[Instruction]:
    """Instructions that compute ``step`` without the reduction; none if it is not the sum of a
    one-hot row.
    """
    if step.op != "reduce" or step.args[0] != "sum":
        return []
    chosen, casts = _defined(step.args[1], inside), []
    while chosen is not None and chosen.op == "cast":
        casts.append(chosen.dtype)
        chosen = _defined(chosen.args[0], inside)
    test = _defined(chosen.args[0], inside) if chosen is not None and chosen.op == "where" else None
    if (
        chosen is None
        or test is None
        or test.op != "eq"
        or not _is_zero(chosen.args[2], outside | inside)
    ):
        return []
    dtype = chosen.dtype
    for place, target in (test.args, test.args[::-1]):
        along = _defined(place, inside)
        if along is None or along.op != "index_expr" or along.args[0] != kernel.reduction[0].symbol:
            continue
        if str(target) in inside or str(chosen.args[1]) in inside or along.dtype is not torch.int64:
            continue
        end, wide = integer(kernel.reduction[0].extent), torch.int64
        is_from = call("le", call("constant", 0, dtype=wide), target, dtype=torch.bool)
        is_before = call("lt", target, call("constant", end, dtype=wide), dtype=torch.bool)
        is_in = call("and", is_from, is_before, dtype=torch.bool)
        zero = call("constant", 0.0 if dtype is None or dtype.is_floating_point else 0)
        picked = call("where", is_in, chosen.args[1], zero, dtype=dtype)
        for cast in reversed(casts):
            picked = call("cast", picked, dtype=cast)
        return write_call(picked, str(step.result), dtype)
    return []


def _defined(operand: object, inside: dict[str, Instruction]) -> Instruction | None:
    return inside.get(operand.name) if isinstance(operand, Value) else None


def _is_zero(operand: object, known: dict[str, Instruction]) -> bool:
    step = _defined(operand, known)
    return step is not None and step.op == "constant" and step.args[0] == 0


def _without_rows(kernel: Kernel) -> Kernel:
    """Makes a kernel pointwise over all its loops if it reduces nothing and stores only in inner
    bodies.
    """
    steps, outside = kernel.steps, steps_of(body for body in kernel.bodies if not body.inner)
    if (
        not kernel.reduction
        or any(step.op in ("reduce", "scan") for step in steps)
        or len(outside) > MOST_REPEATED
    ):
        return kernel
    if any(step.op in ("store", "indirect") for step in outside):
        return kernel
    ranges = (*kernel.ranges, *kernel.reduction)
    return replace(kernel, ranges=ranges, reduction=(), bodies=(Body(False, tuple(steps)),))
