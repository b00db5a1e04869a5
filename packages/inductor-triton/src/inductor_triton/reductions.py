"""Inner bodies: over one block that holds the whole reduction, or in a loop over blocks with accumulators."""

from __future__ import annotations

import torch
from loopir import Body, Instruction

from inductor_triton import ops
from inductor_triton.emitter import Emitter, Term
from inductor_triton.instructions import emit_instruction
from inductor_triton.online import OnlinePair

BOOLEAN = {"any": "any", "all": "all", "max": "any", "min": "all"}
LAST_POSITION = 2**31 - 1
UNROLL = 4
"""Blocks of a row whose loads are in flight together, while each lane keeps one accumulator per element of a block."""
LOWEST = "-3.4028234663852886e38"


def persistent_reduction(emitter: Emitter, body: Body) -> dict[str, Term]:
    """Emits an inner body once; returns the results of its reductions."""
    results = {}
    for step in body.instructions:
        if step.op == "reduce":
            kind, value = _masked(emitter, step)
            where = _positions(emitter) if kind.startswith("arg") else ""
            results[str(step.result)] = _combine(emitter, step, kind, value, where)
        elif step.op == "scan":
            kind, value = _masked(emitter, step)
            text = f"tl.associative_scan({value}, 1, combine_{kind})"
            emitter.values[str(step.result)] = emitter.define(str(step.result), text, emitter.full, _dtype(step))
        else:
            emit_instruction(emitter, step)
    return results


def loop_reduction(emitter: Emitter, body: Body) -> dict[str, Term]:
    """Emits a loop over blocks of the reduction; returns the results of its reductions, combined after it."""
    axis = emitter.tiling.reduction
    assert axis is not None
    outside, computed = emitter.lines, emitter.computed
    emitter.lines, emitter.computed = [], dict(computed)
    emitter.indent += 1
    emitter.reduction_header()
    before: list[str] = []
    pending: list[tuple[Instruction, str, str, str]] = []
    for step in body.instructions:
        if step.op == "reduce":
            pending.append(_accumulate(emitter, step, before))
        elif step.op == "scan":
            _scan(emitter, step, before)
        else:
            emit_instruction(emitter, step)
    inside, emitter.lines, emitter.computed = emitter.lines, outside, computed
    emitter.indent -= 1
    for text in before:
        emitter.line(text)
    emitter.line(f"for rbase in tl.range(0, {emitter.index(axis.extent)[0]}, {axis.block_name}, loop_unroll_factor={UNROLL}):")
    emitter.lines += inside
    return {str(step.result): _combine(emitter, step, kind, value, where) for step, kind, value, where in pending}


def online_reduction(emitter: Emitter, pair: OnlinePair) -> dict[str, Term]:
    """Emits the one loop of a maximum and a sum of exponentials; returns both."""
    axis = emitter.tiling.reduction
    assert axis is not None
    shape, outer = emitter.shape(emitter.full), emitter.full - {"r"}
    largest, total = emitter.fresh(f"{pair.maximum.result}_acc"), emitter.fresh(f"{pair.total.result}_acc")
    emitter.line(f"{largest} = tl.full({shape}, {LOWEST}, tl.float32)")
    emitter.line(f"{total} = tl.full({shape}, 0.0, tl.float32)")
    emitter.line(f"for rbase in tl.range(0, {emitter.index(axis.extent)[0]}, {axis.block_name}, loop_unroll_factor={UNROLL}):")
    computed, emitter.computed = emitter.computed, dict(emitter.computed)
    emitter.indent += 1
    emitter.reduction_header()
    for step in pair.operand:
        emit_instruction(emitter, step)
    _, text = _masked(emitter, pair.maximum)
    emitter.line(f"{largest}, {total} = online_step({largest}, {total}, {text})")
    emitter.indent -= 1
    emitter.computed = computed
    emitter.line(f"{largest}, {total} = tl.reduce(({largest}, {total}), 1, combine_online, keep_dims=True)")
    results = {}
    for step, text in ((pair.maximum, f"online_max({largest}, {total})"), (pair.total, f"online_sum({largest}, {total})")):
        results[str(step.result)] = emitter.define(str(step.result), text, outer, torch.float32)
    return results


def _dtype(step: Instruction) -> torch.dtype:
    assert step.dtype is not None
    return step.dtype


def _positions(emitter: Emitter) -> str:
    axis = emitter.tiling.reduction
    assert axis is not None
    return f"tl.broadcast_to({emitter.position(axis)}.to(tl.int32), {emitter.shape(emitter.full)})"


def _masked(emitter: Emitter, step: Instruction) -> tuple[str, str]:
    """The kind of combination and the operand, over the full block, with the kind's identity beyond the end."""
    kind, term = str(step.args[0]), emitter.operand(step.args[1])
    text, dtype = term.text, term.dtype
    if dtype is torch.bool:
        kind, text, dtype = BOOLEAN.get(kind, kind), f"{text}.to(tl.int32)", torch.int32
    mask = emitter.masks(frozenset("r"))
    if mask:
        text = f"tl.where({mask[0]}, {text}, {ops.identity(kind, dtype)})"
    if term.dims | (frozenset("r") if mask else frozenset()) != emitter.full:
        text = f"tl.broadcast_to({text}, {emitter.shape(emitter.full)})"
    return kind, text


def _accumulator_dtype(emitter: Emitter, step: Instruction) -> torch.dtype:
    dtype = emitter.operand(step.args[1]).dtype
    return torch.int32 if dtype is torch.bool else dtype


def _accumulate(emitter: Emitter, step: Instruction, before: list[str]) -> tuple[Instruction, str, str, str]:
    kind, value = _masked(emitter, step)
    dtype = _accumulator_dtype(emitter, step)
    total, shape = emitter.fresh(f"{step.result}_acc"), emitter.shape(emitter.full)
    before.append(f"{total} = tl.full({shape}, {ops.identity(kind, dtype)}, {ops.TRITON_DTYPES[dtype]})")
    if not kind.startswith("arg"):
        emitter.line(f"{total} = combine_{kind}({total}, {value})")
        return step, kind, total, ""
    where = emitter.fresh(f"{step.result}_at")
    before.append(f"{where} = tl.full({shape}, {LAST_POSITION}, tl.int32)")
    emitter.line(f"{total}, {where} = combine_{kind}({total}, {where}, {value}, {_positions(emitter)})")
    return step, kind, total, where


def _combine(emitter: Emitter, step: Instruction, kind: str, value: str, where: str) -> Term:
    outer = emitter.full - {"r"}
    if where:
        best, place = emitter.fresh(f"{step.result}_value"), emitter.fresh(f"{step.result}_place")
        emitter.line(f"{best}, {place} = tl.reduce(({value}, {where}), 1, combine_{kind}, keep_dims=True)")
        return emitter.define(str(step.result), f"{place}.to(tl.int64)", outer, torch.int64)
    text = f"tl.reduce({value}, 1, combine_{kind}, keep_dims=True)"
    if emitter.operand(step.args[1]).dtype is torch.bool:
        text += " != 0"
    return emitter.define(str(step.result), text, outer, _dtype(step))


def _scan(emitter: Emitter, step: Instruction, before: list[str]) -> None:
    kind, value = _masked(emitter, step)
    dtype, carry, block = _dtype(step), emitter.fresh(f"{step.result}_carry"), emitter.fresh(f"{step.result}_in")
    outer = emitter.shape(emitter.full - {"r"})
    before.append(f"{carry} = tl.full({outer}, {ops.identity(kind, dtype)}, {ops.TRITON_DTYPES[dtype]})")
    emitter.line(f"{block} = {value}")
    scanned = f"combine_{kind}({carry}, tl.associative_scan({block}, 1, combine_{kind}))"
    emitter.values[str(step.result)] = emitter.define(str(step.result), scanned, emitter.full, dtype)
    total = f"tl.reduce({block}, 1, combine_{kind}, keep_dims=True)"
    emitter.line(f"{carry} = combine_{kind}({carry}, {total})")
