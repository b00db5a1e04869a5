"""How each instruction is written: one rule per operation, and one for all elementwise ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor, log2

import sympy
import torch
from loopir import Instruction, Value, definitions

from inductor_triton.spec import ERRORS, INT32_LIMIT

from . import ops
from .emitter import NOTHING, Dims, Emitter, Term
from .indexing import bounds, indices, integer

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
    assert (
        isinstance(step.args[0], sympy.Expr) and step.dtype is not None and step.result is not None
    )
    emitter.index_values[step.result] = step.args[0]
    text, dims, _ = emitter.index(step.args[0])
    if integer(step.args[0]) is not None:
        return _constant(emitter, replace(step, args=(integer(step.args[0]),)))
    counted = _counted(emitter, step)
    if counted is not None:
        rest, first, readers = counted
        if all(emitter.counter_blocks(step.result, PER_BLOCK[op]) for op in readers):
            return Term("", dims, step.dtype)
        text = f"{emitter.index(rest)[0]} + {emitter.number(first)}"
    source = text if text.isidentifier() else f"({text})"
    if step.dtype in (torch.int32, torch.int64):
        converted = f"{source}.to({ops.TRITON_DTYPES[step.dtype]})"
    else:
        converted = ops.cast(source, torch.int32, step.dtype)
    return emitter.define(step.result, converted, dims, step.dtype)


def _counted(emitter: Emitter, step: Instruction) -> tuple[sympy.Expr, int, set[str]] | None:
    """An index that only counts random numbers, without the number of the first; that number; what
    draws them.
    """
    expr, value = step.args[0], Value(str(step.result))
    assert isinstance(expr, sympy.Expr)
    readers = {other.op for other in emitter.kernel.steps if value in other.args}
    if emitter.numbers is None or not readers or not readers <= PER_BLOCK.keys():
        return None
    offset, rest = expr.as_coeff_Add()
    first = integer(offset)
    return None if first is None else (rest, first, readers)


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
    return {symbol for expr in indices(emitter.kernel) for symbol in expr.free_symbols}  # type: ignore[misc]


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
    """One Philox block for four or eight elements, where the counter runs along an axis from a
    multiple of that on.
    """
    assert step.result is not None
    blocks = emitter.counter_blocks(str(step.args[1]), PER_BLOCK[step.op])
    if blocks is None:
        return _elementwise(emitter, step)
    call, dims = blocks
    seed = emitter.operand(step.args[0]).text
    emitter.philox_words[step.result] = call.format("words", seed), dims
    return emitter.define(step.result, call.format("uniform", seed), dims, torch.float32)


def _less(emitter: Emitter, step: Instruction) -> Term:
    """A uniform number against a constant in its range, by the bits that it is made of: dropout's
    mask.
    """
    assert step.result is not None
    for position, (number, limit) in enumerate((step.args, step.args[::-1])):
        drawn, literal = emitter.philox_words.get(str(number)), emitter.operand(limit).literal
        bound = (
            Fraction(torch.tensor(float(literal)).item()) * 2**24
            if drawn and literal and "inf" not in literal
            else 0
        )
        if drawn and 0 < bound < 2**24 - 1:
            words, dims = drawn
            first = ceil(bound) if position == 0 else floor(bound) + 1
            return emitter.define(
                step.result,
                f"{words} {'<' if position == 0 else '>='} {first << 8}",
                dims,
                torch.bool,
            )
    return _elementwise(emitter, step)


def _equal(emitter: Emitter, step: Instruction) -> Term:
    """A place compared with what is the same for many places, in 32 bits: a loss picks one element
    of each row.
    """
    assert step.result is not None
    for place, other in (step.args, step.args[::-1]):
        expr, terms = (
            emitter.index_values.get(str(place)),
            (emitter.operand(place), emitter.operand(other)),
        )
        if (
            expr is None
            or emitter.index_type != "int32"
            or bounds(expr, emitter.symbol_bounds)[0] < 0
        ):
            continue
        if (
            terms[1].dtype is torch.int64
            and terms[1].literal is None
            and not terms[0].dims <= terms[1].dims
        ):
            within = f"({terms[1].text} >= 0) & ({terms[1].text} <= {INT32_LIMIT})"
            text = f"tl.where({within}, {terms[1].text}, -1).to(tl.int32)"
            narrowed = emitter.define(f"{other}_place", text, terms[1].dims, torch.int32, key=text)
            dims, place_text = terms[0].dims | terms[1].dims, emitter.index(expr)[0]
            place_text = place_text if place_text.isidentifier() else f"({place_text})"
            # the lanes of a thread are constants, its places are not
            if str(expr) in emitter.lane_starts:
                lanes, start = emitter.lane_starts[str(expr)]
                text = f"{lanes} == {_late(emitter, narrowed.text)} - ({start})"
                return emitter.define(step.result, text, dims, torch.bool)
            return emitter.define(step.result, f"{place_text} == {narrowed.text}", dims, torch.bool)
    return _elementwise(emitter, step)


def _late(emitter: Emitter, place: str) -> str:
    """``place``, known no earlier than a sum of the row: what is compared before would take the
    registers of kept rows.
    """
    sums = [
        emitter.values[name].text for name in sorted(emitter.at_least_one) if name in emitter.values
    ]
    is_kept = emitter.tiling.config.grid and not emitter.tiling.config.persistent
    return f"({place} + ({sums[0]} < 0.0).to(tl.int32))" if is_kept and sums else place


def _erf(emitter: Emitter, step: Instruction) -> Term:
    """Nothing where only ``1 + erf(x)`` is wanted."""
    term = emitter.operand(step.args[0])
    emitter.arguments_of_erf[str(step.result)] = term
    readers = [other for other in emitter.kernel.steps if Value(str(step.result)) in other.args]
    if readers and all(_adds_one(emitter, other) for other in readers):
        return Term("", term.dims, torch.float32)
    return _elementwise(emitter, step)


def _add(emitter: Emitter, step: Instruction) -> Term:
    """``1 + erf(x)`` in one where it is only multiplied, so that its absolute error counts: it is
    most of gelu's cost.
    """
    found = [
        emitter.arguments_of_erf[str(arg)]
        for arg in step.args
        if str(arg) in emitter.arguments_of_erf
    ]
    if not found or not _adds_one(emitter, step):
        return _elementwise(emitter, step)
    assert step.result is not None
    bits = 16 if step.result in emitter.narrow else 32
    return emitter.define(
        step.result, f"one_plus_erf{bits}({found[0].text})", found[0].dims, torch.float32
    )


def _adds_one(emitter: Emitter, step: Instruction) -> bool:
    """Whether an addition may be one with the ``erf`` that it adds 1 to."""
    adds = step.op == "add" and step.dtype is torch.float32
    constants = (
        other
        for other in emitter.kernel.steps
        if other.op == "constant" and Value(str(other.result)) in step.args
    )
    return (
        adds
        and any(other.args[0] == 1 for other in constants)
        and (step.result in emitter.narrow or _only_multiplied(emitter, step))
    )


def _only_multiplied(emitter: Emitter, step: Instruction) -> bool:
    result = Value(str(step.result))
    return all(other.op == "mul" for other in emitter.kernel.steps if result in other.args)


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


def _exp(emitter: Emitter, step: Instruction) -> Term:
    """exp(a - log b) as exp(a) / b where b is a sum of such exp(a) and 16 bits are kept."""
    known = definitions(emitter.kernel.steps)
    difference = known.get(str(step.args[0]))
    if (
        step.result in emitter.narrow
        and difference is not None
        and _from_maximum(emitter, difference)
    ):
        return emitter.define(str(step.result), *_power(emitter, difference), torch.float32)
    log = (
        known.get(str(difference.args[1]))
        if difference is not None and difference.op == "sub"
        else None
    )
    if (
        difference is None
        or log is None
        or log.op != "log"
        or str(log.args[0]) not in emitter.at_least_one
    ):
        return _elementwise(emitter, step)
    if step.result is None or step.result not in emitter.narrow:
        return _elementwise(emitter, step)
    power, inverse = known.get(str(difference.args[0])), _inverse(emitter, log.args[0])
    if power is not None and _from_maximum(emitter, power):
        text, dims = _power(emitter, power)
    else:
        operand = emitter.operand(difference.args[0])
        text, dims = f"exp16({operand.text})", operand.dims
    return emitter.define(
        step.result, f"{text} * {inverse.text}", dims | inverse.dims, torch.float32
    )


def _from_maximum(emitter: Emitter, step: Instruction) -> bool:
    """Whether a step subtracts the maximum of the row, so that its exponential is at most 1 and
    only its 16 bits count.
    """
    return step.op == "sub" and str(step.args[1]) in emitter.maxima


def _power(emitter: Emitter, step: Instruction) -> tuple[str, Dims]:
    """The exponential of a difference from the maximum. Where all exponentials of a row are taken
    from kept elements, in one multiply-add of them: that the maximum's product is rounded is a
    factor that they share with their sum.
    """
    value, maximum = emitter.operand(step.args[0]), emitter.operand(step.args[1])
    dims = value.dims | maximum.dims
    if not emitter.tiling.config.grid:
        return f"exp_difference({value.text}, {maximum.text})", dims
    scale, name = f"row_scale({maximum.text})", str(step.args[1])
    scale = emitter.define(f"{name}_scale", scale, maximum.dims, torch.float32, key=scale).text
    scaled = f"{maximum.text} * {scale}"
    scaled = emitter.define(f"{name}_scaled", scaled, maximum.dims, torch.float32, key=scaled).text
    return f"tl.exp2({value.text} * {scale} - {scaled})", dims


def _inverse(emitter: Emitter, value: object) -> Term:
    term = emitter.operand(value)
    return emitter.define(f"{value}_inverse", f"1.0 / {term.text}", term.dims, torch.float32)


def _elementwise(emitter: Emitter, step: Instruction) -> Term:
    assert step.dtype is not None and step.result is not None
    terms = [emitter.operand(arg) for arg in step.args]
    dims = NOTHING.union(*(term.dims for term in terms))
    inline = step.op in ops.INFIX and any(term.literal is None for term in terms)
    texts = [term.literal if inline and term.literal is not None else term.text for term in terms]
    if (
        step.op == "div"
        and isinstance(step.args[1], Value)
        and step.args[1].name in emitter.at_least_one
    ):
        return emitter.define(
            step.result, f"{texts[0]} * {_inverse(emitter, step.args[1]).text}", dims, step.dtype
        )
    op = _rounded(emitter, step)
    texts = texts if op == step.op else [term.text for term in terms]
    text = ops.elementwise(op, terms[-1].dtype, texts, step.result in emitter.narrow)
    return emitter.define(step.result, text, dims, step.dtype)


def _rounded(emitter: Emitter, step: Instruction) -> str:
    """The operation, in the form that sees a shared product as all its other uses do."""
    shares = step.dtype in (
        torch.float32,
        torch.float64,
    ) and not emitter.shared_products.isdisjoint(map(str, step.args))
    return ops.ROUNDED.get(step.op, step.op) if shares else step.op


RULES: dict[str, Callable[[Emitter, Instruction], Term]] = {
    "load": _load, "constant": _constant, "index_expr": _index_expr, "indirect": _indirect,
    "cast": _cast, "bitcast": _bitcast,
    "uniform": _uniform, "uniform16": _uniform, "lt": _less, "eq": _equal, "erf": _erf, "add": _add,
    "exp": _exp, "gelu": _gelu,
}  # fmt: skip
