"""Softmax's maximum and sum of exponentials in one pass over a long row (Milakov and Gimelshein, arXiv:1805.02867).

Two bodies are one pass where the first only takes the maximum m of some a, and the second only the sum of exp(a - m), with the
same a computed again. Each lane keeps its own maximum and sum, so that nothing is exchanged inside the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from loopir import Body, Instruction, Value

from inductor_triton import ops
from inductor_triton.emitter import Emitter, Term
from inductor_triton.instructions import emit_instruction

LOWEST = "-3.4028234663852886e38"
PURE = {"load", "cast", "constant", "index_expr", "bitcast"}


@dataclass(frozen=True, slots=True)
class OnlinePair:
    """The instructions that compute a, its maximum's reduction, and the sum's."""

    operand: tuple[Instruction, ...]
    maximum: Instruction
    total: Instruction


def online_pair(first: Body, second: Body) -> OnlinePair | None:
    """The pair that two inner bodies are, or None."""
    maximum, total = _only_reduction(first, "max"), _only_reduction(second, "sum")
    if maximum is None or total is None or total.dtype is not torch.float32 or maximum.dtype is not torch.float32:
        return None
    inside = {str(step.result): step for step in second.instructions}
    exponential = inside.get(str(total.args[1]))
    difference = inside.get(str(exponential.args[0])) if exponential is not None and exponential.op == "exp" else None
    if difference is None or difference.op != "sub" or str(difference.args[1]) != maximum.result:
        return None
    before = {str(step.result): step for step in first.instructions}
    if _meaning(difference.args[0], inside) != _meaning(maximum.args[1], before):
        return None
    return OnlinePair(tuple(step for step in first.instructions if step is not maximum), maximum, total)


def _only_reduction(body: Body, kind: str) -> Instruction | None:
    """The reduction of a body that does nothing else."""
    reduces = [step for step in body.instructions if step.op in ("reduce", "scan", "store", "indirect")]
    return reduces[0] if len(reduces) == 1 and reduces[0].op == "reduce" and reduces[0].args[0] == kind else None


def _meaning(operand: object, defined: dict[str, Instruction]) -> object:
    """An operand as an expression of what is defined outside the body."""
    if not isinstance(operand, Value) or operand.name not in defined:
        return str(operand)
    step = defined[operand.name]
    return (step.op, step.dtype, *(_meaning(arg, defined) for arg in step.args))


def online_reduction(emitter: Emitter, pair: OnlinePair) -> dict[str, Term]:
    """Emits the loop over the row; returns the maximum and the sum."""
    axis = emitter.tiling.reduction
    assert axis is not None
    shape, outer = emitter.shape(emitter.full), emitter.full - {"r"}
    largest, total = emitter.fresh(f"{pair.maximum.result}_acc"), emitter.fresh(f"{pair.total.result}_acc")
    emitter.line(f"{largest} = tl.full({shape}, {LOWEST}, tl.float32)")
    emitter.line(f"{total} = tl.full({shape}, 0.0, tl.float32)")
    emitter.line(f"for rbase in tl.range(0, {emitter.index(axis.extent)[0]}, {axis.block_name}):")
    computed, emitter.computed = emitter.computed, dict(emitter.computed)
    emitter.indent += 1
    emitter.reduction_header()
    for step in pair.operand:
        emit_instruction(emitter, step)
    term = emitter.operand(pair.maximum.args[1])
    text = term.text
    mask = emitter.masks(frozenset("r"))
    if mask:
        text = f"tl.where({mask[0]}, {text}, {ops.identity('max', torch.float32)})"
    if term.dims | (frozenset("r") if mask else frozenset()) != emitter.full:
        text = f"tl.broadcast_to({text}, {shape})"
    emitter.line(f"{largest}, {total} = online_step({largest}, {total}, {text})")
    emitter.indent -= 1
    emitter.computed = computed
    emitter.line(f"{largest}, {total} = tl.reduce(({largest}, {total}), 1, combine_online, keep_dims=True)")
    results = {}
    for step, text in ((pair.maximum, f"online_max({largest}, {total})"), (pair.total, f"online_sum({largest}, {total})")):
        results[str(step.result)] = emitter.define(str(step.result), text, outer, torch.float32)
    return results
