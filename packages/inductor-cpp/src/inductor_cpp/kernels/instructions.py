"""Instructions as C++: a rule per operation, here for those that compute."""

from __future__ import annotations

from dataclasses import replace

import torch
from loopir import Instruction

from .access import as_expr, stride_along
from .collective import emit_reduce, emit_scan
from .dtypes import c_type, literal
from .elementwise import expression
from .emitter import UNIT, Emitter
from .kernel_plan import COMPARISONS
from .memory_access import emit_indirect, emit_load, emit_store
from .scope import Binding


def emit_instruction(e: Emitter, step: Instruction) -> None:
    """Writes one instruction."""
    RULES.get(step.op, emit_elementwise)(e, step)


def emit_cached(e: Emitter, step: Instruction) -> None:
    """Writes an instruction of an inner body, or loads its result from a scratch row."""
    if step.result in e.row_cache.dropped:
        return
    row = e.row_cache.loaded.get(step.result or "")
    if row is not None:
        text = f"load<W>({row}.data + {e.row_position()}, {e.count})"
        e.define(step, text, depth=e.deepest)
        return
    emit_instruction(e, step)
    row = e.row_cache.saved.get(step.result or "")
    if row is not None:
        assert step.result is not None and step.dtype is not None
        address = f"{row}.data + {e.row_position()}"
        e.levels[-1].add(
            f"store<W, {c_type(step.dtype)}>({address}, {e.bindings[step.result].text}, {e.count});"
        )


def emit_elementwise(e: Emitter, step: Instruction) -> None:
    """Writes a scalar if all operands are scalars; otherwise broadcasts them."""
    operands = [e.operand(arg) for arg in step.args]
    vector = any(operand.vector for operand in operands)
    texts = [e.as_vector(operand) if vector else operand.text for operand in operands]
    run_start = None
    if step.op == "add" and vector:
        starts = [operand.run_start if operand.vector else operand.text for operand in operands]
        uniform = [operand for operand in operands if not operand.vector]
        if len(uniform) == 1 and None not in starts:
            run_start = f"({starts[0]} + {starts[1]})"
    text = expression(step.op, texts, step.dtype)
    e.define(step, text, vector=vector, run_start=run_start)


def emit_cast(e: Emitter, step: Instruction) -> None:
    """Writes a cast. A cast to bfloat16 and back is one rounding without packing; loaded values are
    float32 already.
    """
    operand = e.operand(step.args[0])
    if operand.raised is not None and step.dtype is torch.float32:
        assert step.result is not None
        e.bindings[step.result] = Binding(operand.raised, torch.float32, True, operand.depth)
        return
    if (
        operand.exact is not None
        and step.dtype is torch.float32
        and e.only_raised.issuperset(step.reads)
    ):
        e.define(step, f"rounded(tag<bf16>{{}}, {operand.exact})")
        return
    emit_elementwise(e, step)
    assert step.result is not None
    if operand.vector and operand.dtype is torch.float32 and step.dtype is torch.bfloat16:
        e.bindings[step.result] = replace(e.bindings[step.result], exact=operand.text)


def emit_comparison(e: Emitter, step: Instruction) -> None:
    """Writes a comparison. Indices that count up along the lanes are compared with one number per
    lane, in 32 bits.
    """
    operands = [e.operand(arg) for arg in step.args]
    counted = [o.run_start is not None and o.dtype is torch.int64 for o in operands]
    if sum(counted) != 1 or operands[0].dtype != operands[1].dtype:
        emit_elementwise(e, step)
        return
    number, run = operands[counted.index(False)], operands[counted.index(True)]
    if number.vector:
        emit_elementwise(e, step)
        return
    lane = f"splat<W>(lane_of<W>({number.text}, {run.run_start}))"
    texts = ["lane_numbers<W>()" if each else lane for each in counted]
    e.define(step, expression(step.op, texts, step.dtype))


def emit_quotient(e: Emitter, step: Instruction) -> None:
    """Writes a quotient; for a loop-invariant divisor, the reciprocal is computed once."""
    dividend, divisor = (e.operand(arg) for arg in step.args)
    if step.dtype is torch.float32 and dividend.vector and not divisor.vector:
        e.define(step, f"over({dividend.text}, {divisor.text})")
    else:
        emit_elementwise(e, step)


def emit_division(e: Emitter, step: Instruction) -> None:
    """Writes an integer division or remainder; like ATen, it stops at a zero divisor."""
    divisor = e.operand(step.args[1])
    if not divisor.dtype.is_floating_point and not divisor.constant:
        zero = (
            f"has_zero<W>({divisor.text}, {e.count})" if divisor.vector else f"{divisor.text} == 0"
        )
        e.levels[e.deepest].add(f"if ({zero}) return DIVISION_BY_ZERO;")
    emit_elementwise(e, step)


def emit_constant(e: Emitter, step: Instruction) -> None:
    """A literal, used in place."""
    assert step.result is not None and step.dtype is not None
    number = step.args[0]
    if not isinstance(number, int | float):
        raise TypeError(f"{e.kernel.name}: {number!r} is not a number")
    e.bindings[step.result] = Binding(
        literal(number, step.dtype), step.dtype, False, UNIT, constant=number
    )


def emit_index_expr(e: Emitter, step: Instruction) -> None:
    """Writes the value of an index: it counts up along the lanes if it is linear, and is computed
    lane by lane otherwise.
    """
    expr, kind = as_expr(step.args[0]), c_type(step.dtype)
    if not e.varies(expr):
        e.define(step, f"cast<{kind}>(i64({e.index(expr)}))", vector=False)
        return
    assert e.plan.axis is not None
    stride = stride_along(expr, e.plan.axis.symbol)
    bent = any(s.name in e.bindings and e.bindings[s.name].vector for s in expr.free_symbols)  # type: ignore[attr-defined]
    if stride is None or bent:
        lane = f"[&](i64 k) LAMBDA -> i64 {{ return {e.index(expr, 'k')}; }}"
        e.define(step, f"cast<{kind}>(gather<W, i64>({e.count}, {lane}))")
        return
    base = e.index(expr)
    run_start = f"i64({base})" if stride == 1 and step.dtype is torch.int64 else None
    e.define(step, f"cast<{kind}>(iota<W>({base}, {e.index(stride)}))", run_start=run_start)


def emit_uniform(e: Emitter, step: Instruction) -> None:
    """Random numbers; consecutive counters share their blocks."""
    seed, counter = e.operand(step.args[0]), e.operand(step.args[1])
    if seed.vector:
        text = f"uniform_lanes<W>(cast<i64>({seed.text}), cast<i64>({e.as_vector(counter)}))"
    elif not counter.vector:
        text = f"uniform_of(i64({seed.text}), i64({counter.text}))"
    elif counter.run_start is not None:
        text = f"uniform_run(i64({seed.text}), {counter.run_start}, vec<f32, W>{{}})"
    else:
        text = f"uniform_of(i64({seed.text}), cast<i64>({counter.text}))"
    e.define(step, text, vector=seed.vector or counter.vector)


def emit_uniform16(e: Emitter, step: Instruction) -> None:
    """Writes random numbers one by one; other devices create such masks."""
    seed, counter = e.operand(step.args[0]), e.operand(step.args[1])
    vector = seed.vector or counter.vector
    if vector:
        lanes = f"cast<i64>({e.as_vector(seed)}), cast<i64>({e.as_vector(counter)})"
        text = f"uniform16_lanes<W>({lanes})"
    else:
        text = f"uniform16_of(i64({seed.text}), i64({counter.text}))"
    e.define(step, text, vector=vector)


RULES = {
    "constant": emit_constant,
    "index_expr": emit_index_expr,
    "load": emit_load,
    "store": emit_store,
    "indirect": emit_indirect,
    "reduce": emit_reduce,
    "scan": emit_scan,
    "uniform": emit_uniform,
    "uniform16": emit_uniform16,
    "cast": emit_cast,
    "div": emit_quotient,
    **dict.fromkeys(COMPARISONS, emit_comparison),
    "floordiv": emit_division,
    "remainder": emit_division,
    "fmod": emit_division,
}
"""Whatever is missing is elementwise."""
