"""Cut a function at one instruction: a first half, and functions that carry on.

The first half runs up to and including the cut, then hands over: it passes the variables that are
still needed and the stack to a resume function, which restores the stack and jumps to the next
instruction. A resume function keeps the whole body, exception table included, so being inside
``with``, ``try`` or ``for`` needs nothing more: a block is only a range of instructions and some
stack entries.

Handing over is a call, or the return of a continuation object that the frame hook runs once the
first half's frame is gone (``continuation=``): then a cut in a loop costs no recursion and leaves
no extra frame in tracebacks.

A resume function that is cut again hands over to resume functions of the original, not of itself:
so a cut in a loop leads back to the same code object after one round. For this a resume function
carries a ``ResumeMark`` among its constants.

What a resume function takes: first the variables (a cell variable as the raw cell), then the stack
entries from the bottom, leaving out those that are always NULL. A value that may be unbound or NULL
is replaced by ``UNBOUND`` on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import CodeType

from .analysis import Analysis, Entry
from .handover import Continuation, Handover, Origin, Resume, origin_of, prune, resume_mark
from .instruction import (
    CO_NEWLOCALS,
    CO_OPTIMIZED,
    GENERATOR_FLAGS,
    JUMPS,
    NO_FALL_THROUGH,
    Call,
    Code,
    Instruction,
    Label,
    Op,
    with_label,
)


@dataclass(frozen=True)
class Split:
    """The parts of a split function; a split at a branch has one resume function for each way
    (falling through first).
    """

    first_half: Code
    resumes: tuple[Resume, ...]


def can_split(code: Code | CodeType) -> bool:
    """Whether a function can be split: generators, class bodies and module bodies cannot."""
    flags = code.co_flags if isinstance(code, CodeType) else code.flags
    return bool(flags & CO_OPTIMIZED and flags & CO_NEWLOCALS) and not flags & GENERATOR_FLAGS


def split_points(code: Code, analysis: Analysis) -> list[int]:
    """The instructions after which a function can be split."""
    start = prologue_size(code)
    return [
        k
        for k, item in enumerate(code.instructions)
        if k >= start
        and analysis.states[k] is not None
        and (item.op in JUMPS or item.op not in NO_FALL_THROUGH)
    ]


def split_at(
    code: Code, k: int, analysis: Analysis | None = None, continuation: Continuation | None = None
) -> Split:
    """Cut after instruction ``k``.

    ``continuation(resume_function, *arguments)`` makes what the first half returns; None: the first
    half calls the resume function itself.
    """
    body, cut = _cut_body(code, k, analysis, continuation)
    instructions = prune(body, keep=prologue_size(code))
    return Split(
        _with_locals(replace(code, instructions=instructions), cut.temporaries), tuple(cut.resumes)
    )


def replace_before(
    code: Code,
    k: int,
    prefix: Sequence[Instruction],
    analysis: Analysis | None = None,
    continuation: Continuation | None = None,
    extra_locals: Iterable[str] = (),
    *,
    calls: bool = False,
) -> Split:
    """Cut after instruction ``k`` and put ``prefix`` in the place of everything that leads to it.

    The prefix must leave variables and stack as the original has them before ``k`` (stack entries
    of kind NULL included). Instruction ``k`` runs in the first half, with its own exception
    handler; handlers reached from it run there too. With ``calls`` it is a call, and the prefix
    leaves another callable and its argument in place of the operands.
    """
    body, cut = _cut_body(code, k, analysis, continuation)
    if calls:
        item = body[k]
        body[k] = Instruction(Op.CALL, Call(1), item.position, item.handler, item.label)
    entry = frame_entry(code)
    label = body[k].label or Label()
    body[k] = with_label(body[k], label)
    jump = Instruction(Op.JUMP, label, body[k].position, body[k].handler)
    instructions = prune([*entry, *prefix, jump, *body], keep=len(entry))
    first = replace(code, instructions=instructions, consts=(None,), names=())
    return Split(_with_locals(first, [*extra_locals, *cut.temporaries]), tuple(cut.resumes))


@dataclass(frozen=True)
class Entrance:
    """A function that enters another one before an instruction, runs that, and hands over.

    Its argument is a list of what a resume function takes there: the stack's entries first, then
    (where another call takes the place of the instruction) the callable and its argument, and the
    variables.
    """

    code: Code
    resumes: tuple[Resume, ...]
    variables: tuple[str, ...]
    live: frozenset[str]
    """The variables that are read later; the others are overwritten or deleted."""
    stack: tuple[Entry, ...]


def enter_at(
    code: Code, k: int, continuation: Continuation | None = None, *, calls: bool
) -> Entrance:
    """A function that carries on before instruction ``k`` and is cut after it (see ``split_at``).

    With ``calls`` the instruction is a call, and that of another callable takes its place.
    """
    origin = origin_of(code)
    handover = Handover(origin, k, code.position_at(k), enters=True, calls=calls)
    resume = handover.resume
    mark = resume_mark(resume.code)
    assert mark is not None
    place = next(j for j, place in mark.places.items() if place == k)
    split = split_at(resume.code, place, continuation=continuation)
    return Entrance(
        split.first_half, split.resumes, resume.variables, handover.live(), resume.stack
    )


def replacement(code: Code, body: Sequence[Instruction], extra_locals: Iterable[str] = ()) -> Code:
    """Code that runs ``body`` in place of the original.

    It has the signature, variables, cells, free variables, name, file name and first line of the
    original; the beginning (COPY_FREE_VARS, MAKE_CELL, RESUME) is put before the body.
    ``extra_locals`` are names of further variables; names that exist already are left alone.
    """
    entry = frame_entry(code)
    instructions = prune([*entry, *body], keep=len(entry))
    return _with_locals(
        replace(code, instructions=instructions, consts=(None,), names=()), extra_locals
    )


def prologue_size(code: Code) -> int:
    """The number of instructions before the body; RESUME is the last of them."""
    return 1 + next(k for k, item in enumerate(code.instructions) if item.op is Op.RESUME)


def frame_entry(code: Code) -> list[Instruction]:
    """The instructions that a frame of this function has to begin with: free variables, cells,
    RESUME.

    In a resume function the cells are passed in, so its MAKE_CELL are jumped over; the instructions
    between them and RESUME restore the stack and belong to the body (see ``body_start``).
    """
    start = body_start(code)
    entry = code.instructions[:start]
    if entry and entry[-1].op is Op.RESUME:
        return list(entry)
    resume = code.instructions[prologue_size(code) - 1]
    return [*entry, Instruction(Op.RESUME, 0, resume.position)]


def body_start(code: Code) -> int:
    """Index of the first instruction that an evaluator has to look at: what comes before only sets
    up the frame.

    In an ordinary function this is the one after RESUME. In a resume function it is the first one
    that restores variables and stack.
    """
    instructions = code.instructions
    k = 0
    if instructions[k].op is Op.COPY_FREE_VARS:
        k += 1
    if instructions[k].op is Op.JUMP and instructions[k + 1].op is Op.MAKE_CELL:
        over = instructions[k].arg
        return 1 + next(j for j, item in enumerate(instructions) if item.label is over)
    while instructions[k].op in (Op.MAKE_CELL, Op.COPY_FREE_VARS):
        k += 1
    return k + 1 if instructions[k].op is Op.RESUME else k


def has_raw_cells(code: Code) -> bool:
    """Whether this is a resume function that is given cells: an argument that is a cell variable
    then holds the raw cell.
    """
    instructions = code.instructions
    k = int(instructions[0].op is Op.COPY_FREE_VARS)
    return instructions[k].op is Op.JUMP and instructions[k + 1].op is Op.MAKE_CELL


def _with_locals(code: Code, names: Iterable[str]) -> Code:
    known = {*code.varnames, *code.cellvars, *code.freevars}
    added = [name for name in dict.fromkeys(names) if name not in known]
    return replace(code, varnames=(*code.varnames, *added)) if added else code


@dataclass
class _Cut:
    resumes: list[Resume]
    temporaries: list[str]


def _original_place(code: Code, k: int, analysis: Analysis | None) -> tuple[Origin, int]:
    """The original function of instruction k, and its index there."""
    mark = resume_mark(code)
    place = None if mark is None else mark.places.get(k)
    if mark is None or place is None:
        return origin_of(code, analysis), k
    return mark.origin, place


def _cut_body(
    code: Code, k: int, analysis: Analysis | None, continuation: Continuation | None
) -> tuple[list[Instruction], _Cut]:
    """The whole body with a handover after instruction k, on both ways if it branches."""
    item = code.instructions[k]
    origin, place = _original_place(code, k, analysis)
    body = list(code.instructions)
    cut = _Cut([], [])

    def hand_over(target: int) -> list[Instruction]:
        handover = Handover(origin, target, code.position_at(k), continuation)
        cut.resumes.append(handover.resume)
        cut.temporaries += handover.temporaries
        return handover.instructions()

    inline: list[Instruction] = []
    if item.op not in NO_FALL_THROUGH:
        inline = hand_over(place + 1)
    if item.op in JUMPS:
        away = Label()
        out_of_line = hand_over(origin.analysis.places[item.arg])
        out_of_line[0] = with_label(out_of_line[0], away)
        body[k] = Instruction(item.op, away, item.position, item.handler, item.label)
        body += out_of_line
    body[k + 1 : k + 1] = inline
    return body, cut
