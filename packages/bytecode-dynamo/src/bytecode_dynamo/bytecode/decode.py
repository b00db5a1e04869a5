"""From a native code object to neutral instructions."""

from __future__ import annotations

import types
import weakref
from dataclasses import dataclass
from opcode import opname
from types import CodeType

from bytecode_dynamo.bytecode.versions.base import Native

from .instruction import Code, Handler, Instruction, Label, Op, label_positions
from .operands import BACKWARD, FORWARD, Pool
from .tables import positions_of, read_exception_table
from .versions import RUNNING

EXTENDED_ARG = "EXTENDED_ARG"
_ROWS = {row.native: (row.op, row.operand.unpack) for row in RUNNING.rows}
# Jumps that a fold splits are not rows.
_FORWARD = {row.native for row in RUNNING.rows if row.operand is FORWARD} | {
    name for name in RUNNING.folds if name.startswith("JUMP_")
}
_BACKWARD = {row.native for row in RUNNING.rows if row.operand is BACKWARD}
_BY_NUMBER = [(name, RUNNING.caches.get(name, 0)) for name in opname]


def read_natives(code: CodeType) -> list[Native]:
    """Native instructions with their jumps and handlers resolved to labels."""
    raw = code.co_code
    positions = positions_of(code)
    natives: list[Native] = []
    labels: dict[int, Label] = {}
    offset, start, argument = 0, 0, 0
    for_position = 0
    end = len(raw) // 2
    while offset < end:
        name, caches = _BY_NUMBER[raw[2 * offset]]
        argument = argument << 8 | raw[2 * offset + 1]
        for_position = offset
        offset += 1
        if name == EXTENDED_ARG:
            continue
        offset += caches
        native = Native(name, argument, None, positions[for_position], None, None, start)
        if name in _FORWARD:
            native.target = labels.setdefault(offset + argument, Label())
        elif name in _BACKWARD:
            native.target = labels.setdefault(offset - argument, Label())
        natives.append(native)
        start, argument = offset, 0
    by_offset = {native.offset: k for k, native in enumerate(natives)}
    for entry in read_exception_table(code.co_exceptiontable):
        handler = Handler(labels.setdefault(entry.target, Label()), entry.depth, entry.lasti)
        k = by_offset[entry.start]
        while k < len(natives) and natives[k].offset < entry.end:
            natives[k].handler = handler
            k += 1
    for place, label in labels.items():
        natives[by_offset[place]].label = label
    return natives


def drop_loop_landings(natives: list[Native]) -> None:
    """Make FOR_ITER jump to the instruction after its END_FOR, and drop END_FOR."""
    landing = RUNNING.loop_landing
    if not landing:
        return
    where = {native.label: k for k, native in enumerate(natives) if native.label is not None}
    dropped: set[int] = set()
    for native in natives:
        if native.name != "FOR_ITER":
            continue
        assert native.target is not None
        k = where[native.target]
        after = k + len(landing)
        if tuple(item.name for item in natives[k:after]) != landing:
            raise ValueError("FOR_ITER does not leave to END_FOR")
        exit_ = natives[after]
        if exit_.label is None:
            exit_.label = Label()
        native.target = exit_.label
        dropped.update(range(k, after))
    if dropped:
        natives[:] = [native for k, native in enumerate(natives) if k not in dropped]


def lower(natives: list[Native], pool: Pool) -> list[Instruction]:
    """Turn native instructions into neutral ones."""
    out: list[Instruction] = []
    folds = RUNNING.folds
    label: Label | None = None  # of the next instruction: some natives have no neutral form
    k, end = 0, len(natives)
    while k < end:
        native = natives[k]
        label = native.label or label
        fold = folds.get(native.name)
        folded = fold(natives, k, pool) if fold is not None else None
        if folded is None:
            op, unpack = _ROWS[native.name]
            arg = native.target if native.target is not None else unpack(native.arg, pool)
            out.append(Instruction(op, arg, native.position, native.handler, label))
            label = None
            k += 1
            continue
        pairs, consumed = folded
        # The last native of a fold is the one that can raise: its position counts.
        position = natives[k + consumed - 1].position
        for op, arg in pairs:
            out.append(Instruction(op, arg, position, native.handler, label))
            label = None
        k += consumed
    return out


class UnsupportedCode(ValueError):
    """A code object that has no neutral form."""


# Neutral forms by the identity of living code objects (which compare by contents, and not all of
# it).
_KNOWN: dict[int, tuple[weakref.ref[CodeType], Code]] = {}


def remember(native: CodeType, code: Code) -> None:
    """Make ``decode(native)`` return this object while the code object lives."""
    key = id(native)
    _KNOWN[key] = weakref.ref(native, lambda ref: _KNOWN.pop(key, None)), code


def decode(native: CodeType) -> Code:
    """The neutral form of a code object: always the same object while it lives. UnsupportedCode if
    it has none.
    """
    known = _KNOWN.get(id(native))
    if known is not None and known[0]() is native:
        return known[1]
    code = decode_anew(native)
    remember(native, code)
    return code


def decode_anew(code: CodeType) -> Code:
    """The neutral form of a code object, without the cache."""
    if not set(code.co_cellvars).isdisjoint(code.co_freevars):
        raise UnsupportedCode("one name stands for two variables")
    # an inlined comprehension (PEP 709) may have a variable of the name of a free one: it never
    # outlives the comprehension
    varnames = tuple(f"{name}@" if name in code.co_freevars else name for name in code.co_varnames)
    pool = Pool(code.co_consts, code.co_names, varnames, code.co_cellvars, code.co_freevars)
    natives = read_natives(code)
    drop_loop_landings(natives)
    return Code(
        name=code.co_name,
        qualname=code.co_qualname,
        filename=code.co_filename,
        first_line=code.co_firstlineno,
        flags=code.co_flags,
        argcount=code.co_argcount,
        posonly_argcount=code.co_posonlyargcount,
        kwonly_argcount=code.co_kwonlyargcount,
        varnames=varnames,
        cellvars=code.co_cellvars,
        freevars=code.co_freevars,
        instructions=lower(natives, pool),
        consts=code.co_consts,
        names=code.co_names,
    )


@dataclass(slots=True)
class Decoded:
    """A code object in neutral form, with the indices of its labels."""

    native: types.CodeType
    neutral: Code
    places: dict[Label, int]
    handles: bool = False
    """Whether it has exception handlers."""

    @property
    def instructions(self) -> list[Instruction]:
        """The neutral instructions."""
        return self.neutral.instructions


_decoded: dict[int, Decoded] = {}


def decoded(code: types.CodeType) -> Decoded:
    """Decode once per code object (by identity: equal code objects may differ in positions)."""
    found = _decoded.get(id(code))
    if found is None or found.native is not code:
        neutral = decode(code)
        if len(_decoded) > 10_000:
            _decoded.clear()
        handles = any(item.op is Op.PUSH_EXC_INFO for item in neutral.instructions)
        found = _decoded[id(code)] = Decoded(
            code, neutral, label_positions(neutral.instructions), handles
        )
    return found
