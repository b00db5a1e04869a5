"""Writes each instruction: one rule per operation, and one rule for all elementwise operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, floor, log2

import sympy
import torch
from loopir import Instruction

from inductor_triton.kernels.passes.instruction_selection import random_bits
from inductor_triton.spec import ERRORS

from . import ops, random_counters
from .emitter import NOTHING, Dims, Emitter, Term
from .indexing import indices, integer

Expression = tuple[str, Dims]
"""The text of a value and the axes along which it varies."""
PER_BLOCK = {"uniform": 4, "uniform16": 8}
"""Random numbers per Philox block."""


def emit_instruction(emitter: Emitter, step: Instruction) -> None:
    """Writes one instruction (not ``reduce`` or ``scan``), and adds its result to the scope."""
    if step.op == "store":
        _store(emitter, step)
        return
    assert step.result is not None
    value = RULES.get(step.op, _elementwise)(emitter, step)
    if not isinstance(value, Term):
        value = emitter.define(step.result, *value, dtype_of(step))
    emitter.values[step.result] = value


def dtype_of(step: Instruction) -> torch.dtype:
    """The dtype of an instruction that has a result."""
    assert step.dtype is not None
    return step.dtype


def _pointer(emitter: Emitter, buffer: str, index: str) -> str:
    return emitter.name(buffer) if index == "0" else f"{emitter.name(buffer)} + {index}"


def _load(emitter: Emitter, step: Instruction) -> Term:
    buffer, expr, mask, other = step.args
    assert (
        isinstance(buffer, str)
        and isinstance(expr, sympy.Expr)
        and step.dtype is not None
        and step.result is not None
    )
    text, dims, indirect = emitter.index(expr)
    guards = [
        Term(term.valid, term.dims, torch.bool) for term in indirect if term.valid is not None
    ]
    guards += [emitter.operand(mask)] if mask is not None else []
    wanted = dims.union(*(guard.dims for guard in guards))
    if wanted != dims:
        text = emitter.expanded(text, dims, wanted)
    masks = emitter.masks(wanted) + [guard.text for guard in guards]
    arguments = [_pointer(emitter, buffer, text)]
    arguments += [f"mask={' & '.join(masks)}"] if masks else []
    arguments += [f"other={ops.format_constant(other, step.dtype)}"] if mask is not None else []
    evict = emitter.eviction.get(buffer, "") if wanted >= {"x", "r"} and not indirect else ""
    evict = (
        "evict_first"
        if evict and emitter.blocks_held and emitter.rest_begins is not None
        else evict
    )
    key = ("load", *arguments, emitter.stores_made.get(buffer, 0))
    if key not in emitter.computed:
        _synchronise(emitter, buffer)
    policy = f', eviction_policy="{evict}"' if evict else ""
    text = f"tl.load({', '.join(arguments)}{policy})"
    if (
        emitter.walk is not None
        and emitter.tiling.config.persistent
        and wanted == {"r"}
        and buffer not in emitter.stores_made
        and not guards
        and key not in emitter.computed
    ):
        emitter.before_walk(f"{emitter.name(step.result)} = {text}")
        emitter.computed[key] = Term(emitter.name(step.result), wanted, step.dtype)
    return emitter.define(step.result, text, wanted, step.dtype, key)


def _synchronise(emitter: Emitter, buffer: str) -> None:
    # Another thread of the block may have stored the element that this thread loads: layouts differ
    # between accesses.
    if buffer in emitter.unsynchronised:
        emitter.line("tl.debug_barrier()")
        emitter.unsynchronised.clear()


def _store(emitter: Emitter, step: Instruction) -> None:
    buffer, expr, value, mode = step.args
    assert isinstance(buffer, str) and isinstance(expr, sympy.Expr)
    text, dims, indirect = emitter.index(expr)
    guards = [term.valid for term in indirect if term.valid is not None]
    pointer = _pointer(emitter, buffer, emitter.expanded(text, dims, emitter.body_dims))
    masks = emitter.masks(emitter.body_dims) + guards
    mask = f", mask={' & '.join(masks)}" if masks else ""
    term = emitter.operand(value)
    if mode == "add":
        addend = emitter.expanded(term.text, term.dims, emitter.body_dims)
        if emitter.walk is not None:
            emitter.add_share(buffer, addend, text)
            return
        emitter.line(f'tl.atomic_add({pointer}, {addend}{mask}, sem="relaxed")')
    else:
        emitter.line(f"tl.store({pointer}, {term.text}{mask})")
    version = emitter.stores_made[buffer] = emitter.stores_made.get(buffer, 0) + 1
    emitter.unsynchronised.add(buffer)
    if (
        mode is None
        and not guards
        and dims == term.dims == emitter.body_dims
        and term.dtype == emitter.buffers[buffer].dtype
    ):
        # A later load of the same element reuses the value that is still in a register.
        emitter.computed[
            "load",
            _pointer(emitter, buffer, text),
            *([mask.removeprefix(", ")] if mask else []),
            version,
        ] = term


def _constant(emitter: Emitter, step: Instruction) -> Term:
    (number,), dtype = step.args, dtype_of(step)
    literal = ops.format_constant(number, dtype)
    return Term(ops.constant_text(number, dtype), NOTHING, dtype, literal)


def _index_expr(emitter: Emitter, step: Instruction) -> Term | Expression:
    expr = step.args[0]
    assert isinstance(expr, sympy.Expr)
    if integer(expr) is not None:
        return _constant(emitter, replace(step, args=(integer(expr),)))
    text, dims, _ = emitter.index(expr)
    return _index_cast(text, dtype_of(step)), dims


def _index_cast(text: str, dtype: torch.dtype) -> str:
    source = _factor(text)
    if dtype in (torch.int32, torch.int64):
        return f"{source}.to({ops.TRITON_DTYPES[dtype]})"
    return ops.cast(source, torch.int32, dtype)


def _factor(text: str) -> str:
    return text if text.isidentifier() else f"({text})"


def _indirect(emitter: Emitter, step: Instruction) -> Term:
    value, size = step.args
    assert isinstance(size, sympy.Expr) and step.result is not None
    term = emitter.operand(value)
    text = term.text
    valid = None if step.result in emitter.plan.proven else _checked(emitter, step, term, size)
    narrowed = f"{text}{emitter.index_cast or '.to(tl.int32)'}"
    found = emitter.define(step.result, narrowed, term.dims, torch.int64)
    symbol = next(
        (s for s in _free_symbols(emitter) if s.name == step.result), sympy.Symbol(step.result)
    )
    result = replace(found, valid=valid)
    emitter.symbols[symbol] = result
    return result


def _checked(emitter: Emitter, step: Instruction, index: Term, size: sympy.Expr) -> str:
    """The name of whether an index is within ``size``; reports where it isn't, once per value."""
    text = f"({index.text} >= 0) & ({index.text} < {emitter.index(size)[0]})"
    is_new = (text, index.dims) not in emitter.computed
    valid = emitter.define(f"{step.result}_valid", text, index.dims, torch.bool).text
    if is_new:
        masks = " & ".join([f"({valid} == 0)", *emitter.masks(index.dims)])
        emitter.line(f"tl.store({ERRORS} + {valid}.to(tl.int32) * 0, 1, mask={masks})")
    return valid


def _free_symbols(emitter: Emitter) -> set[sympy.Symbol]:
    return {symbol for expr in indices(emitter.plan.steps) for symbol in expr.free_symbols}  # type: ignore[misc]


def _cast(emitter: Emitter, step: Instruction) -> Term | Expression:
    term, dtype = emitter.operand(step.args[0]), dtype_of(step)
    return term if term.dtype == dtype else (ops.cast(term.text, term.dtype, dtype), term.dims)


def _bitcast(emitter: Emitter, step: Instruction) -> Expression:
    term = emitter.operand(step.args[0])
    return f"{term.text}.to({ops.TRITON_DTYPES[dtype_of(step)]}, bitcast=True)", term.dims


def _uniform(emitter: Emitter, step: Instruction) -> Expression:
    """Random numbers: one Philox block for four or eight elements if the positions are consecutive
    along an axis and start at a multiple of that, else one per element.
    """
    seed, place, first = step.args
    assert isinstance(place, sympy.Expr) and isinstance(first, int)
    op = step.op.removesuffix("_at")
    blocks = random_counters.blocks(emitter, place, first, PER_BLOCK[op])
    if blocks is not None:
        return blocks[0].format("uniform", emitter.operand(seed).text), blocks[1]
    counter, dims = random_counters.counters(emitter, place, first)
    counter = emitter.define(f"{step.result}_counter", counter, dims, torch.int64).text
    seed = emitter.operand(seed)
    return f"{op}({seed.text}, {counter})", dims | seed.dims


def _threshold(emitter: Emitter, step: Instruction) -> Expression:
    """Compares a uniform number with a limit: on the random words if whole Philox blocks are
    available, else on the number itself.
    """
    seed, place, first, limit = step.args
    assert isinstance(place, sympy.Expr) and isinstance(first, int) and isinstance(limit, float)
    op, _, side = step.op.partition("_")
    bits, is_below = random_bits(limit), side == "below"
    blocks = random_counters.blocks(emitter, place, first, PER_BLOCK[op])
    if blocks is not None:
        text, dims = blocks[0].format("words", emitter.operand(seed).text), blocks[1]
        return text + (
            f" < {ceil(bits) << 8}" if is_below else f" >= {(floor(bits) + 1) << 8}"
        ), dims
    number = f"{step.result}_number"
    drawn = _uniform(emitter, replace(step, result=number, op=f"{op}_at", args=step.args[:3]))
    number = emitter.define(number, *drawn, torch.float32).text
    literal = ops.format_constant(limit, torch.float32)
    return f"{number} < {literal}" if is_below else f"{literal} < {number}", drawn[1]


def _equal_place(emitter: Emitter, step: Instruction) -> Expression:
    """Compares a position with an int32. The position is split into start and lane, because a
    thread's lanes are compile-time constants while its positions are not.
    """
    place, other = step.args[0], emitter.operand(step.args[1])
    assert isinstance(place, sympy.Expr)
    text, dims, _ = emitter.index(place)
    text = f"{_factor(text)} == {other.text}"
    if str(place) in emitter.lane_starts:
        lanes, start = emitter.lane_starts[str(place)]
        text = f"{lanes} == {other.text} - ({start})"
    return text, dims | other.dims


def _gelu(emitter: Emitter, step: Instruction) -> Expression:
    """gelu, or a multiple of it at no extra cost."""
    x, factor = emitter.operand(step.args[0]), float(step.args[1]) if len(step.args) > 1 else 1.0  # type: ignore[arg-type]
    scaled = "" if factor == 1.0 else f", {factor / 2!r}, {log2(factor) - 1!r}"
    return f"gelu16({x.text}{scaled})", x.dims


def _elementwise(emitter: Emitter, step: Instruction) -> Expression:
    terms = [emitter.operand(arg) for arg in step.args]
    dims = NOTHING.union(*(term.dims for term in terms))
    inline = step.op in ops.INFIX and any(term.literal is None for term in terms)
    texts = [term.literal if inline and term.literal is not None else term.text for term in terms]
    return ops.elementwise(step.op, terms[-1].dtype, texts), dims


RULES: dict[str, Callable[[Emitter, Instruction], Term | Expression]] = {
    "load": _load, "constant": _constant, "index_expr": _index_expr, "indirect": _indirect,
    "cast": _cast, "bitcast": _bitcast, "gelu": _gelu, "eq_place": _equal_place,
    "uniform_at": _uniform, "uniform16_at": _uniform,
    "uniform_below": _threshold, "uniform_above": _threshold,
    "uniform16_below": _threshold, "uniform16_above": _threshold,
}  # fmt: skip
