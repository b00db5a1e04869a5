"""Writes inner bodies: over one block that has the whole reduction, or in a loop over blocks with
accumulators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import sympy
import torch
from loopir import Body, Instruction, accessed

from inductor_triton.kernels.passes.online_softmax import OnlinePair

from . import ops
from .emitter import Emitter, Term
from .heuristics import LONG_COLUMNS
from .indexing import integer
from .instructions import dtype_of, emit_instruction

BOOLEAN = {"any": "any", "all": "all", "max": "any", "min": "all"}
LAST_POSITION = 2**31 - 1
UNROLL = 4
"""Blocks of a row whose loads are in flight at the same time; each lane has one accumulator per
element of a block.
"""
WIDEST_UNROLLED = 16
"""Bytes per thread of a block beyond which a loop is not unrolled if the end of the row stays in
registers.
"""
TOGETHER = 4
"""Blocks of a row that share one update of the maximum in one-pass softmax: one exponential per
element and one per update.

Twice as many for a single 16-bit buffer if the end of the row stays in registers (softmax of 50304
on an H200: 109 us, not 113).
"""
LOWEST = "-3.4028234663852886e38"


@dataclass(slots=True)
class _Loop:
    """A loop over blocks. ``before`` has the lines in front of it; ``carried`` has by result each
    reduction or scan that it continues: instruction, kind, accumulator, and a second variable.

    The second variable has the positions of an arg reduction, the block of a scan, or the reduced
    last part of the row.
    """

    before: list[str] = field(default_factory=list)
    carried: dict[str, tuple[Instruction, str, str, str]] = field(default_factory=dict)

    def fill(self, name: str, shape: str, value: object, dtype: str) -> None:
        """Sets an accumulator before the loop."""
        self.before.append(f"{name} = tl.full({shape}, {value}, {dtype})")


def persistent_reduction(emitter: Emitter, body: Body) -> dict[str, Term]:
    """Emits an inner body once; returns the results of its reductions."""
    results = {}
    for step in _loads_first(body.instructions):
        name = str(step.result)
        if step.op == "reduce":
            kind, value = _masked(emitter, step)
            where = _positions(emitter) if kind.startswith("arg") else ""
            results[name] = _combine(emitter, step, kind, value, where)
        elif step.op == "scan":
            kind, value = _masked(emitter, step)
            text = f"tl.associative_scan({value}, 1, combine_{kind})"
            emitter.values[name] = emitter.define(name, text, emitter.body_dims, dtype_of(step))
        else:
            emit_instruction(emitter, step)
    return results


def _loads_first(steps: Sequence[Instruction]) -> list[Instruction]:
    """The steps with loads ahead of the first reduction where they need nothing that is computed:
    threads wait for each other in a reduction, and loads after it would begin only then.
    """
    first = next((i for i, step in enumerate(steps) if step.op in ("reduce", "scan")), len(steps))
    computed = {str(step.result) for step in steps}
    stored = accessed(steps, "store")

    def is_free(step: Instruction) -> bool:
        if step.op != "load" or step.args[0] in stored or step.args[2] is not None:
            return False
        index = step.args[1]
        assert isinstance(index, sympy.Expr)
        return computed.isdisjoint(map(str, index.free_symbols))

    early = [step for step in steps[first:] if is_free(step)]
    rest = [step for step in steps[first:] if not is_free(step)]
    return [*steps[:first], *early, *rest]


def loop_reduction(emitter: Emitter, body: Body, operations: int) -> dict[str, Term]:
    """Emits a loop over blocks of the reduction; returns the results of its reductions, combined
    after it. ``operations``: see :class:`KernelPlan`.
    """
    loop = _Loop()

    def blocks(count: int) -> None:
        outside = emitter.computed
        for number in range(count):
            emitter.computed = dict(outside)
            emitter.reduction_header(number)
            for step in body.instructions:
                if step.op == "reduce":
                    _accumulate(emitter, step, loop)
                elif step.op == "scan":
                    _scan(emitter, step, loop)
                else:
                    emit_instruction(emitter, step)
            emitter.leave_block()

    unroll = 1 if operations > LONG_COLUMNS else UNROLL
    if emitter.blocks_held and emitter.plan.bytes_per_thread > WIDEST_UNROLLED:
        unroll = 1
    lines = _loops(emitter, blocks, unroll=unroll)
    for text in loop.before:
        emitter.line(text)
    emitter.lines += lines
    return {
        name: _combine(emitter, step, *variables)
        for name, (step, *variables) in loop.carried.items()
        if step.op == "reduce"
    }


def _loops(
    emitter: Emitter, blocks: Callable[[int], None], together: int = 1, unroll: int = 1
) -> list[str]:
    """The lines that run ``blocks(n)`` over the reduction, n blocks after each ``rbase``: full
    blocks without masks, then the rest.
    """
    axis = emitter.tiling.reduction
    assert axis is not None
    outside, computed, indent = emitter.lines, emitter.computed, emitter.indent
    extent, hold = integer(axis.extent), emitter.blocks_held
    full = None if extent is None else extent // axis.block - hold
    while hold and full is not None and full % together:
        together -= 1
    step = axis.block * together
    whole = None if full is None else full // together * step
    emitter.lines = []

    def rest() -> None:
        if whole is not None and extent is not None and whole < extent:
            emitter.computed, emitter.rest_begins = dict(computed), whole
            emitter.line(f"rbase = {whole}")
            blocks(-(-(extent - whole) // axis.block))
            emitter.unmasked, emitter.rest_begins = frozenset(), None

    again = bool(emitter.held)
    if again:
        rest()
    if whole != 0 or extent == 0:
        end = emitter.index(axis.extent)[0] if whole is None else whole
        unroll = min(unroll, unroll if whole is None else whole // step)
        option = f", loop_unroll_factor={unroll}" if unroll > 1 else ""
        emitter.line(f"for rbase in tl.range(0, {end}, {step}{option}):")
        emitter.computed, emitter.indent = dict(computed), indent + 1
        emitter.unmasked = frozenset() if whole is None else frozenset("r")
        blocks(together)
        emitter.indent, emitter.unmasked = indent, frozenset()
    if not again:
        rest()
    lines, emitter.lines, emitter.computed = emitter.lines, outside, computed
    return lines


def online_reduction(emitter: Emitter, pair: OnlinePair) -> dict[str, Term]:
    """Emits a single loop for a maximum and a sum of exponentials, several blocks at a time;
    returns both results.
    """
    shape, outer = emitter.shape(emitter.body_dims), emitter.body_dims - {"r"}
    maximum = pair.maximum.result
    largest, total, grown, operand = map(
        emitter.fresh,
        (f"{maximum}_acc", f"{pair.total.result}_acc", f"{maximum}_now", f"{maximum}_in"),
    )
    emitter.line(f"{largest} = tl.full({shape}, {LOWEST}, tl.float32)")
    emitter.line(f"{total} = tl.full({shape}, 0.0, tl.float32)")

    def blocks(count: int) -> None:
        outside = emitter.computed
        names = [f"{operand}{number}" for number in range(count)]
        for number, name in enumerate(names):
            emitter.computed = dict(outside)
            emitter.reduction_header(number)
            for step in pair.operand:
                emit_instruction(emitter, step)
            emitter.line(f"{name} = {_masked(emitter, pair.maximum)[1]}")
            emitter.leave_block()
        emitter.line(f"{grown} = {reduce(lambda a, b: f'larger({a}, {b})', [largest, *names])}")
        terms = " + ".join(f"exp_difference({name}, {grown})" for name in names)
        emitter.line(f"{total} = {total} * exp_difference({largest}, {grown}) + ({terms})")
        emitter.line(f"{largest} = {grown}")

    loads = sum(step.op == "load" for step in pair.operand)
    is_light = (
        emitter.blocks_held and loads == 1 and emitter.plan.bytes_per_thread <= WIDEST_UNROLLED
    )
    emitter.lines += _loops(emitter, blocks, 2 * TOGETHER if is_light else TOGETHER)
    emitter.line(f"{grown} = {_of_row(emitter, largest, 'combine_max')}")
    terms = f"{total} * exp_difference({largest}, {grown})"
    emitter.line(f"{total} = {_of_row(emitter, terms, 'combine_sum')}")
    results = {}
    for step, text in (
        (pair.maximum, f"online_max({grown}, {total})"),
        (pair.total, f"online_sum({grown}, {total})"),
    ):
        results[str(step.result)] = emitter.define(str(step.result), text, outer, torch.float32)
    return results


def _of_row(emitter: Emitter, value: str, combine: str) -> str:
    """A row's reduction. A single row gives a scalar: Triton hands a block to another loop through
    memory to which all threads write the same.
    """
    if emitter.tiling.config.x == 1:
        return f"tl.reduce(tl.reduce({value}, 1, {combine}), 0, {combine})"
    return f"tl.reduce({value}, 1, {combine}, keep_dims=True)"


def _positions(emitter: Emitter) -> str:
    axis = emitter.tiling.reduction
    assert axis is not None
    return (
        f"tl.broadcast_to({emitter.position(axis)}.to(tl.int32), "
        f"{emitter.shape(emitter.body_dims)})"
    )


def _masked(emitter: Emitter, step: Instruction) -> tuple[str, str]:
    """The kind of combination, and the operand over the full block with the kind's identity beyond
    the end.
    """
    kind, term = str(step.args[0]), emitter.operand(step.args[1])
    text, dtype = term.text, term.dtype
    if dtype is torch.bool:
        kind, text, dtype = BOOLEAN.get(kind, kind), f"{text}.to(tl.int32)", torch.int32
    mask = emitter.masks(frozenset("r"))
    if mask:
        text = f"tl.where({mask[0]}, {text}, {ops.identity(kind, dtype)})"
    if term.dims | (frozenset("r") if mask else frozenset()) != emitter.body_dims:
        text = f"tl.broadcast_to({text}, {emitter.shape(emitter.body_dims)})"
    return kind, text


def _accumulator_dtype(emitter: Emitter, step: Instruction) -> torch.dtype:
    dtype = emitter.operand(step.args[1]).dtype
    return torch.int32 if dtype is torch.bool else dtype


def _accumulate(emitter: Emitter, step: Instruction, loop: _Loop) -> None:
    (kind, value), result = _masked(emitter, step), str(step.result)
    if emitter.replaced_axis is not None:
        end = emitter.fresh(f"{result}_end")
        emitter.line(f"{end} = tl.reduce({value}, 1, combine_{kind}, keep_dims=True)")
        loop.carried[result] = (*loop.carried[result][:3], end)
        return
    if result not in loop.carried:
        dtype, shape = _accumulator_dtype(emitter, step), emitter.shape(emitter.body_dims)
        total = emitter.fresh(f"{result}_acc")
        where = emitter.fresh(f"{result}_at") if kind.startswith("arg") else ""
        loop.fill(total, shape, ops.identity(kind, dtype), ops.TRITON_DTYPES[dtype])
        if where:
            loop.fill(where, shape, LAST_POSITION, "tl.int32")
        loop.carried[result] = (step, kind, total, where)
    _, _, total, where = loop.carried[result]
    if where:
        emitter.line(
            f"{total}, {where} = combine_{kind}({total}, {where}, {value}, {_positions(emitter)})"
        )
    else:
        emitter.line(f"{total} = combine_{kind}({total}, {value})")


def _combine(emitter: Emitter, step: Instruction, kind: str, value: str, where: str) -> Term:
    """The result of a reduction. ``where``: the positions of an arg reduction, else the separately
    reduced end of the row.
    """
    outer = emitter.body_dims - {"r"}
    if where and kind.startswith("arg"):
        # not as a pair: threads exchange pairs through memory to which they all write, and a pair
        # of scalars came back with the position of another value
        values, best = emitter.fresh(f"{step.result}_values"), emitter.fresh(f"{step.result}_best")
        emitter.line(f"{values} = {value}")
        combine = f"combine_{kind.removeprefix('arg')}"
        emitter.line(f"{best} = tl.reduce({values}, 1, {combine}, keep_dims=True)")
        places = f"tl.where(is_same({values}, {best}), {where}, {LAST_POSITION})"
        text = f"tl.reduce({places}, 1, combine_min, keep_dims=True).to(tl.int64)"
        return emitter.define(str(step.result), text, outer, torch.int64)
    text = f"tl.reduce({value}, 1, combine_{kind}, keep_dims=True)"
    text = f"combine_{kind}({text}, {where})" if where else text
    if emitter.operand(step.args[1]).dtype is torch.bool:
        text += " != 0"
    return emitter.define(str(step.result), text, outer, dtype_of(step))


def _scan(emitter: Emitter, step: Instruction, loop: _Loop) -> None:
    (kind, value), result, dtype = _masked(emitter, step), str(step.result), dtype_of(step)
    if result not in loop.carried:
        carry, block = emitter.fresh(f"{result}_carry"), emitter.fresh(f"{result}_in")
        outer = emitter.shape(emitter.body_dims - {"r"})
        loop.fill(carry, outer, ops.identity(kind, dtype), ops.TRITON_DTYPES[dtype])
        loop.carried[result] = (step, kind, carry, block)
    _, _, carry, block = loop.carried[result]
    emitter.line(f"{block} = {value}")
    scanned = f"combine_{kind}({carry}, tl.associative_scan({block}, 1, combine_{kind}))"
    emitter.values[result] = emitter.define(result, scanned, emitter.body_dims, dtype)
    total = f"tl.reduce({block}, 1, combine_{kind}, keep_dims=True)"
    emitter.line(f"{carry} = combine_{kind}({carry}, {total})")
