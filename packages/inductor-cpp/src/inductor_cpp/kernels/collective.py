"""Reductions and scans: declaration before the loop, accumulation inside, result after it."""

from __future__ import annotations

import math

import torch
from loopir import Instruction, flat_position

from .dtypes import c_type
from .emitter import Emitter
from .kernel_plan import Role, row_length
from .names import identifier
from .printer import print_index
from .scope import Binding

COMBINERS = {
    "sum": "plus",
    "prod": "times",
    "max": "greatest",
    "min": "least",
    "any": "either",
    "all": "both",
}
TYPICAL_LANES = 8
PLAIN_ADDITIONS = 16
PLACES = {"argmax": "true", "argmin": "false"}


def emit_reduce(e: Emitter, step: Instruction) -> None:
    """Accumulates a value over the reduction loops of the current body."""
    kind, value = str(step.args[0]), e.operand(step.args[1])
    assert step.result is not None and step.dtype is not None
    name, outside = identifier(step.result), e.levels[-1 - len(e.plan.inner)]
    row = e.plan.role is Role.REDUCTION
    vector = row or value.vector
    width = "W" if vector else "1"
    text = e.as_vector(value) if vector else value.text
    if kind in PLACES:
        position = f"i64({print_index(flat_position(e.kernel.reduction))})"
        place = (
            f"iota<W>({position}, 1)" if row else f"splat<W>({position})" if vector else position
        )
        accumulator, count = f"{name}_place", e.count if row else "full{}"
        outside.add(f"extreme_place<{PLACES[kind]}, {c_type(value.dtype)}, {width}> {accumulator};")
        e.levels[-1].add(f"{accumulator}.add({text}, {place}, {count});")
    else:
        accumulator, count = f"{name}_{kind}", e.count if row else "full{}"
        if value.dtype != step.dtype:
            text = f"cast<{c_type(step.dtype)}>({text})"
        outside.add(f"{_accumulator_type(e, kind, step.dtype, width)} {accumulator};")
        e.levels[-1].add(f"{accumulator}.add({text}, {count});")
        cascade = _needs_cascade(e, kind, step.dtype)
        if cascade:
            e.cascades.append(accumulator)
        if not row and (cascade or _is_precise(kind, step.dtype)):
            e.epilogue.append(f"{accumulator}.finish();")
    result_vector = vector and not row
    declared = "auto" if result_vector else c_type(step.dtype)
    e.epilogue.append(f"const {declared} {name} = {accumulator}.{'total()' if row else 'lanes'};")
    depth = len(e.levels) - 1 - len(e.plan.inner)
    e.bindings[step.result] = Binding(name, step.dtype, result_vector, depth)


def _accumulator_type(e: Emitter, kind: str, dtype: torch.dtype, width: str) -> str:
    if _is_precise(kind, dtype):
        return f"precise<{width}>"
    if _needs_cascade(e, kind, dtype):
        deep = "" if _most_additions(e) > PLAIN_ADDITIONS**2 else ", false"
        return f"cascade<{c_type(dtype)}, {width}{deep}>"
    return f"fold<{COMBINERS[kind]}, {c_type(dtype)}, {width}>"


def _needs_cascade(e: Emitter, kind: str, dtype: torch.dtype) -> bool:
    """Whether a lane may add so many floats that rounding errors accumulate."""
    return (
        kind == "sum"
        and dtype is torch.float32
        and not e.plan.columns
        and _most_additions(e) > PLAIN_ADDITIONS
    )


def _is_precise(kind: str, dtype: torch.dtype) -> bool:
    """Whether rounding errors are summed separately: no wider type could hold the sum."""
    return kind == "sum" and dtype is torch.float64


def _most_additions(e: Emitter) -> float:
    """How many values a lane adds; infinity if that depends on sizes."""
    count = row_length(e.plan)
    lanes = TYPICAL_LANES * e.plan.width if e.plan.role is Role.REDUCTION else 1
    return int(count) / lanes if count.is_Integer else math.inf


def emit_scan(e: Emitter, step: Instruction) -> None:
    """An inclusive prefix along the single reduction range."""
    kind, value = COMBINERS[str(step.args[0])], e.operand(step.args[1])
    assert step.result is not None and step.dtype is not None
    name, outside = identifier(step.result), e.levels[-1 - len(e.plan.inner)]
    element, row = c_type(step.dtype), e.plan.role is Role.REDUCTION
    vector = row or value.vector
    text = e.as_vector(value) if vector else value.text
    owner = "prefix_over_lanes" if row else "prefix_over_rows"
    outside.add(f"{owner}<{kind}, {element}, {'W' if vector else '1'}> {name}_scan;")
    arguments = f"{text}, {e.count}" if row else text
    e.define(step, f"{name}_scan.next({arguments})", vector=vector, depth=e.deepest)
