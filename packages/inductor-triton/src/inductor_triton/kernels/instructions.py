"""How each instruction is written: one rule per operation, and one for all elementwise ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, floor, log2

import sympy
import torch
from loopir import Instruction

from inductor_triton.kernels.passes.instruction_selection import random_bits
from inductor_triton.spec import ERRORS

from . import ops
from .emitter import NOTHING, Emitter, Term
from .indexing import indices, integer

PER_BLOCK = {"uniform": 4, "uniform16": 8}
"""Random numbers of a Philox block."""


def emit_instruction(emitter: Emitter, step: Instruction) -> None:
    """Writes one instruction other than ``reduce`` and ``scan``, and enters its result into the
    scope.
    """
    if step.op == "store":
        _store(emitter, step)
        return
    assert step.result is not None
    emitter.values[step.result] = RULES.get(step.op, _elementwise)(emitter, step)


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
    # Another thread of the block may have stored what this one loads: layouts differ from access to
    # access.
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
        addend = (
            term.text
            if term.dims == emitter.body_dims
            else emitter.expanded(term.text, term.dims, emitter.body_dims)
        )
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
        # A later load of the same place is the value that is still in a register.
        emitter.computed[
            "load",
            _pointer(emitter, buffer, text),
            *([mask.removeprefix(", ")] if mask else []),
            version,
        ] = term


def _constant(emitter: Emitter, step: Instruction) -> Term:
    assert step.dtype is not None
    text = ops.constant_text(step.args[0], step.dtype)
    return Term(text, NOTHING, step.dtype, literal=ops.format_constant(step.args[0], step.dtype))


def _index_expr(emitter: Emitter, step: Instruction) -> Term:
    expr = step.args[0]
    assert isinstance(expr, sympy.Expr) and step.dtype is not None and step.result is not None
    if integer(expr) is not None:
        return _constant(emitter, replace(step, args=(integer(expr),)))
    text, dims, _ = emitter.index(expr)
    return emitter.define(step.result, _index_cast(text, step.dtype), dims, step.dtype)


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
    valid = emitter.define(
        f"{step.result}_valid",
        f"({text} >= 0) & ({text} < {emitter.index(size)[0]})",
        term.dims,
        torch.bool,
    )
    masks = [f"({valid.text} == 0)", *emitter.masks(term.dims)]
    emitter.line(f"tl.store({ERRORS} + {valid.text}.to(tl.int32) * 0, 1, mask={' & '.join(masks)})")
    narrowed = f"{text}{emitter.index_cast or '.to(tl.int32)'}"
    found = emitter.define(step.result, narrowed, term.dims, torch.int64)
    symbol = next(
        (s for s in _free_symbols(emitter) if s.name == step.result), sympy.Symbol(step.result)
    )
    result = replace(found, valid=valid.text)
    emitter.symbols[symbol] = result
    return result


def _free_symbols(emitter: Emitter) -> set[sympy.Symbol]:
    return {symbol for expr in indices(emitter.plan.steps) for symbol in expr.free_symbols}  # type: ignore[misc]


def _cast(emitter: Emitter, step: Instruction) -> Term:
    assert step.dtype is not None and step.result is not None
    term = emitter.operand(step.args[0])
    if term.dtype == step.dtype:
        return term
    return emitter.define(
        step.result, ops.cast(term.text, term.dtype, step.dtype), term.dims, step.dtype
    )


def _bitcast(emitter: Emitter, step: Instruction) -> Term:
    assert step.dtype is not None and step.result is not None
    term = emitter.operand(step.args[0])
    text = f"{term.text}.to({ops.TRITON_DTYPES[step.dtype]}, bitcast=True)"
    return emitter.define(step.result, text, term.dims, step.dtype)


def _uniform(emitter: Emitter, step: Instruction) -> Term:
    """One Philox block for four or eight elements if the places run along an axis from a multiple
    of that on.
    """
    seed, place, first = step.args
    assert isinstance(place, sympy.Expr) and isinstance(first, int) and step.result is not None
    op = step.op.removesuffix("_at")
    blocks = emitter.random_blocks(place, first, PER_BLOCK[op])
    if blocks is not None:
        text, dims = blocks
        text = text.format("uniform", emitter.operand(seed).text)
        return emitter.define(step.result, text, dims, torch.float32)
    text, dims, _ = emitter.index(place)
    counter = _index_cast(f"{text} + {emitter.number(first)}", torch.int64)
    counter = emitter.define(f"{step.result}_counter", counter, dims, torch.int64).text
    seed = emitter.operand(seed)
    return emitter.define(
        step.result, f"{op}({seed.text}, {counter})", dims | seed.dims, torch.float32
    )


def _threshold(emitter: Emitter, step: Instruction) -> Term:
    """A uniform number compared with a limit: the words that it is made of, if they are there."""
    seed, place, first, limit = step.args
    assert isinstance(place, sympy.Expr) and isinstance(first, int) and isinstance(limit, float)
    assert step.result is not None
    op, _, side = step.op.partition("_")
    bits, is_below = random_bits(limit), side == "below"
    blocks = emitter.random_blocks(place, first, PER_BLOCK[op])
    if blocks is not None:
        text, dims = blocks[0].format("words", emitter.operand(seed).text), blocks[1]
        text += f" < {ceil(bits) << 8}" if is_below else f" >= {(floor(bits) + 1) << 8}"
    else:
        number = replace(step, result=f"{step.result}_number", op=f"{op}_at", args=step.args[:3])
        drawn = _uniform(emitter, number)
        literal = ops.format_constant(limit, torch.float32)
        text = f"{drawn.text} < {literal}" if is_below else f"{literal} < {drawn.text}"
        dims = drawn.dims
    return emitter.define(step.result, text, dims, torch.bool)


def _equal_place(emitter: Emitter, step: Instruction) -> Term:
    """A place compared with an int32. Lanes of a thread are constants, their places are not."""
    place, other = step.args[0], emitter.operand(step.args[1])
    assert isinstance(place, sympy.Expr) and step.result is not None
    text, dims, _ = emitter.index(place)
    text = f"{_factor(text)} == {other.text}"
    if str(place) in emitter.lane_starts:
        lanes, start = emitter.lane_starts[str(place)]
        text = f"{lanes} == {other.text} - ({start})"
    return emitter.define(step.result, text, dims | other.dims, torch.bool)


def _gelu(emitter: Emitter, step: Instruction) -> Term:
    """gelu, or a multiple of it, which takes nothing more."""
    assert step.result is not None
    x, factor = emitter.operand(step.args[0]), float(step.args[1]) if len(step.args) > 1 else 1.0  # type: ignore[arg-type]
    text = (
        f"gelu16({x.text})"
        if factor == 1.0
        else f"gelu16({x.text}, {factor / 2!r}, {log2(factor) - 1!r})"
    )
    return emitter.define(step.result, text, x.dims, torch.float32)


def _elementwise(emitter: Emitter, step: Instruction) -> Term:
    assert step.dtype is not None and step.result is not None
    terms = [emitter.operand(arg) for arg in step.args]
    dims = NOTHING.union(*(term.dims for term in terms))
    inline = step.op in ops.INFIX and any(term.literal is None for term in terms)
    texts = [term.literal if inline and term.literal is not None else term.text for term in terms]
    text = ops.elementwise(step.op, terms[-1].dtype, texts)
    return emitter.define(step.result, text, dims, step.dtype)


RULES: dict[str, Callable[[Emitter, Instruction], Term]] = {
    "load": _load, "constant": _constant, "index_expr": _index_expr, "indirect": _indirect,
    "cast": _cast, "bitcast": _bitcast, "gelu": _gelu, "eq_place": _equal_place,
    "uniform_at": _uniform, "uniform16_at": _uniform,
    "uniform_below": _threshold, "uniform_above": _threshold,
    "uniform16_below": _threshold, "uniform16_above": _threshold,
}  # fmt: skip
