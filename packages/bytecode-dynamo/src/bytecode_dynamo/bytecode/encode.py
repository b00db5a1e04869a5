"""From neutral instructions to a native code object of the running interpreter."""

from __future__ import annotations

from opcode import opmap
from types import CodeType

from bytecode_dynamo.bytecode.versions.base import Native

from .instruction import NO_FALL_THROUGH, Code, Instruction, Label, Op
from .operands import BACKWARD, Pool
from .stack_effect import stack_size
from .tables import ExceptionEntry, write_exception_table, write_position_table
from .versions import RUNNING

_ROWS = {
    row.op: (row.native, row.operand.pack)
    for row in RUNNING.rows
    if row.op not in RUNNING.expands and row.operand is not BACKWARD
}
_CACHES = {name: RUNNING.caches.get(name, 0) for name in opmap}
_EXTENDED_ARG = opmap["EXTENDED_ARG"]
_INVERSE = {
    "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE",
    "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE",
    "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
}


def raise_to_natives(instructions: list[Instruction], pool: Pool) -> list[Native]:
    """Expand neutral instructions; a jump keeps its label."""
    out: list[Native] = []
    expands = RUNNING.expands
    exits = {item.arg for item in instructions if item.op is Op.FOR_ITER}
    # An exhausted loop jumps to a landing instruction that FOR_ITER skips.
    landing_of = {label: Label() for label in exits} if RUNNING.loop_landing else {}
    pending: Label | None = None
    previous: Op | None = None
    for item in instructions:
        label = item.label
        if label is not None and pending is not None:
            out.append(Native("NOP", 0, None, item.position, item.handler, pending))
            pending = None
        landing = landing_of.get(label)
        if landing is not None:
            if previous is not None and previous not in NO_FALL_THROUGH:
                out.append(Native("JUMP_FORWARD", 0, label, out[-1].position, out[-1].handler))
            loop = next(x for x in instructions if x.op is Op.FOR_ITER and x.arg is label)
            for name in RUNNING.loop_landing:
                out.append(Native(name, 0, None, loop.position, loop.handler, landing))
                landing = None
        label = label or pending
        pending = None
        op = item.op
        expand = expands.get(op)
        if expand is not None:
            pairs = expand(item, pool)
        else:
            native, pack = _ROWS[op]
            arg = item.arg
            pairs = ((native, arg if isinstance(arg, Label) else pack(arg, pool)),)
        for name, arg in pairs:
            if isinstance(arg, Label):
                target = landing_of[arg] if op is Op.FOR_ITER and landing_of else arg
                out.append(Native(name, 0, target, item.position, item.handler, label))
            else:
                out.append(Native(name, arg, None, item.position, item.handler, label))
            label = None
        pending = label
        previous = op
    return out


def fuse(natives: list[Native]) -> list[Native]:
    """Join neighbours into the combined instructions of this version."""
    out: list[Native] = []
    fuses = RUNNING.fuses
    k, end = 0, len(natives)
    while k < end:
        native = natives[k]
        rule = fuses.get(native.name)
        fused = rule(natives, k) if rule is not None else None
        if fused is None or any(
            item.label is not None or item.handler != native.handler
            for item in natives[k + 1 : k + fused[0]]
        ):
            out.append(native)
            k += 1
            continue
        consumed, name, arg = fused
        number, target = (0, arg) if isinstance(arg, Label) else (arg, None)
        out.append(Native(name, number, target, native.position, native.handler, native.label))
        k += consumed
    for native in out:
        native.name = RUNNING.pseudo_names.get(native.name, native.name)
    return out


def orient_jumps(natives: list[Native]) -> list[Native]:
    """Choose the backward form of jumps whose target comes first."""
    where = {native.label: k for k, native in enumerate(natives) if native.label is not None}
    out: list[Native] = []
    for k, native in enumerate(natives):
        out.append(native)
        if native.target is None:
            continue
        if where[native.target] > k:
            if native.name == "JUMP_BACKWARD_NO_INTERRUPT":
                native.name = "JUMP_FORWARD"
        elif native.name == "JUMP_BACKWARD_NO_INTERRUPT":
            pass
        elif native.name == "JUMP_FORWARD":
            native.name = "JUMP_BACKWARD"
        elif native.name in RUNNING.backward_names:
            native.name = RUNNING.backward_names[native.name]
        elif native.name in _INVERSE:
            following = natives[k + 1]
            if following.label is None:
                following.label = Label()
            back = Native("JUMP_BACKWARD", 0, native.target, native.position, native.handler)
            out.append(back)
            native.name, native.target = _INVERSE[native.name], following.label
        else:
            raise ValueError(f"{native.name} cannot jump backward")
    return out


def shield_lookups(natives: list[Native]) -> list[Native]:
    """Put a NOP, in the same exception range, before a call that is the first of its range.

    When a Python function called by 3.13 raises, its caller looks for a handler at the code
    unit before the call.
    """
    if not RUNNING.looks_up_early:
        return natives
    out: list[Native] = []
    before = None
    for native in natives:
        if native.handler != before and native.name in RUNNING.looks_up_early:
            out.append(Native("NOP", 0, None, native.position, native.handler, native.label))
            native.label = None
        out.append(native)
        before = native.handler
    return out


def extra_units(argument: int) -> int:
    """How many EXTENDED_ARG an operand needs."""
    return 0 if argument < 256 else (argument.bit_length() - 1) // 8


def lay_out(natives: list[Native]) -> int:
    """Assign every native its offset and every jump its operand; returns the size in units."""
    sizes = [1 + _CACHES[native.name] + extra_units(native.arg) for native in natives]
    jumps = [k for k, native in enumerate(natives) if native.target is not None]
    while True:
        offset = 0
        place: dict[Label, int] = {}
        for native, size in zip(natives, sizes, strict=True):
            native.offset = offset
            if native.label is not None:
                place[native.label] = offset
            offset += size
        stable = True
        for k in jumps:
            native = natives[k]
            assert native.target is not None
            distance = place[native.target] - native.offset - sizes[k]
            native.arg = abs(distance)
            needed = 1 + _CACHES[native.name] + extra_units(native.arg)
            if needed > sizes[k]:
                sizes[k] = needed
                stable = False
        if stable:
            return offset


def assemble(natives: list[Native], size: int) -> bytes:
    """The native bytes; caches are zeros."""
    out = bytearray(2 * size)
    for native in natives:
        at, argument = 2 * native.offset, native.arg
        if argument > 255:
            for shift in range(8 * extra_units(argument), 0, -8):
                out[at] = _EXTENDED_ARG
                out[at + 1] = argument >> shift & 255
                at += 2
        out[at] = opmap[native.name]
        out[at + 1] = argument & 255
    return bytes(out)


def exception_entries(natives: list[Native], size: int) -> list[ExceptionEntry]:
    """Runs of instructions with one handler."""
    place = {native.label: native.offset for native in natives if native.label is not None}
    entries: list[ExceptionEntry] = []
    current, start = None, 0
    for native in natives:
        handler = native.handler
        if handler is current or handler == current:
            continue
        if current is not None:
            target = place[current.target]
            entries.append(ExceptionEntry(start, native.offset, target, *current[1:]))
        current, start = handler, native.offset
    if current is not None:
        entries.append(ExceptionEntry(start, size, place[current.target], *current[1:]))
    return entries


def position_spans(natives: list[Native], size: int) -> list[tuple[tuple, int]]:
    """Positions with the number of code units each covers."""
    spans: list[tuple[tuple, int]] = []
    ends = [native.offset for native in natives[1:]] + [size]
    start = 0
    for k, (native, end) in enumerate(zip(natives, ends, strict=True)):
        if k + 1 < len(natives) and natives[k + 1].position == native.position:
            continue
        spans.append((native.position, end - start))
        start = end
    return spans


def encode(code: Code) -> CodeType:
    """The native form of neutral code."""
    pool = Pool(code.consts, code.names, code.varnames, code.cellvars, code.freevars)
    natives = fuse(raise_to_natives(code.instructions, pool))
    natives = orient_jumps(shield_lookups(natives))
    size = lay_out(natives)
    return CodeType(
        code.argcount,
        code.posonly_argcount,
        code.kwonly_argcount,
        len(code.varnames),
        stack_size(code.instructions),
        code.flags,
        assemble(natives, size),
        tuple(pool.consts),
        tuple(pool.names),
        code.varnames,
        code.filename,
        code.name,
        code.qualname,
        code.first_line,
        write_position_table(position_spans(natives, size), code.first_line),
        write_exception_table(exception_entries(natives, size)),
        code.freevars,
        code.cellvars,
    )
