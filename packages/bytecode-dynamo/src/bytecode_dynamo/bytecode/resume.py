"""Cut a function at one instruction: a first half, and functions that carry on.

The first half runs up to and including the cut, then hands over: it passes the variables that are still needed and the stack
to a resume function, which restores the stack and jumps to the next instruction. A resume function keeps the whole body,
exception table included, so being inside ``with``, ``try`` or ``for`` needs nothing more: a block is only a range of
instructions and some stack entries.

Handing over is a call, or the return of a continuation object that the frame hook runs once the first half's frame is gone
(``continuation=``): then a cut in a loop costs no recursion and leaves no extra frame in tracebacks.

What a resume function takes: first the variables (a cell variable as the raw cell), then the stack entries from the bottom,
leaving out those that are always NULL. A value that may be unbound or NULL is replaced by ``UNBOUND`` on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import CodeType

from .analysis import Analysis, Entry, State, reachable
from .encode import encode
from .instruction import (
    CO_NEWLOCALS,
    CO_OPTIMIZED,
    CO_VARARGS,
    CO_VARKEYWORDS,
    GENERATOR_FLAGS,
    JUMPS,
    NO_FALL_THROUGH,
    Call,
    Code,
    Handler,
    Instruction,
    Label,
    Op,
    Position,
    with_label,
)
from .versions import RUNNING

CLOSURE_FLAG = 8
FRAME_READERS = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"})


class Unbound:
    """The type of ``UNBOUND``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<unbound>"

    def __reduce__(self) -> str:
        return "UNBOUND"


UNBOUND = Unbound()
"""Stands for an unbound variable or a NULL stack entry while they are passed to a resume function."""

Continuation = Callable[..., object]


@dataclass(frozen=True)
class Resume:
    """A function that carries on at one instruction of the original.

    ``target`` is the index of that instruction in the original, ``variables`` the slots passed first, ``stack`` the kinds of
    the stack entries there; those that are not ``Entry.NULL`` are passed after the variables, bottom first.
    """

    code: Code
    target: int
    variables: tuple[str, ...]
    stack: tuple[Entry, ...]

    @cached_property
    def native(self) -> CodeType:
        """The code object; always the same one."""
        return encode(self.code)


@dataclass(frozen=True)
class Split:
    """The parts of a cut function; a cut at a branch has one resume function for each way (falling through first)."""

    first_half: Code
    resumes: tuple[Resume, ...]


def can_split(code: Code | CodeType) -> bool:
    """Whether a function can be cut: generators, class bodies and module bodies cannot."""
    flags = code.co_flags if isinstance(code, CodeType) else code.flags
    return bool(flags & CO_OPTIMIZED and flags & CO_NEWLOCALS) and not flags & GENERATOR_FLAGS


def split_points(code: Code, analysis: Analysis) -> list[int]:
    """Instructions after which a function can be cut."""
    start = prologue_size(code)
    return [
        k
        for k, item in enumerate(code.instructions)
        if k >= start and analysis.states[k] is not None and (item.op in JUMPS or item.op not in NO_FALL_THROUGH)
    ]


def split_at(code: Code, k: int, analysis: Analysis | None = None, continuation: Continuation | None = None) -> Split:
    """Cut after instruction ``k``.

    ``continuation(resume_function, *arguments)`` makes what the first half returns; None: the first half calls the resume
    function itself.
    """
    body, cut = _cut_body(code, k, analysis or Analysis(code), continuation)
    instructions = prune(body, keep=prologue_size(code))
    return Split(_with_locals(replace(code, instructions=instructions), cut.temporaries), tuple(cut.resumes))


def replace_before(
    code: Code,
    k: int,
    prefix: Sequence[Instruction],
    analysis: Analysis | None = None,
    continuation: Continuation | None = None,
    extra_locals: Iterable[str] = (),
) -> Split:
    """Cut after instruction ``k`` and put ``prefix`` in the place of everything that leads to it.

    The prefix must leave variables and stack as the original has them before ``k`` (stack entries of kind NULL included).
    Instruction ``k`` runs in the first half, with its own exception handler; handlers reached from it run there too.
    """
    body, cut = _cut_body(code, k, analysis or Analysis(code), continuation)
    entry = frame_entry(code)
    label = body[k].label or Label()
    body[k] = with_label(body[k], label)
    jump = Instruction(Op.JUMP, label, body[k].position, body[k].handler)
    instructions = prune([*entry, *prefix, jump, *body], keep=len(entry))
    first = replace(code, instructions=instructions, consts=(None,), names=())
    return Split(_with_locals(first, [*extra_locals, *cut.temporaries]), tuple(cut.resumes))


def continue_at(
    code: Code,
    target: int,
    prefix: Sequence[Instruction],
    analysis: Analysis | None = None,
    continuation: Continuation | None = None,
    extra_locals: Iterable[str] = (),
) -> Split:
    """Run ``prefix``, then hand over to a function that carries on at instruction ``target`` (which it executes).

    The prefix must leave variables and stack as the original has them before ``target``.
    """
    handover = Handover(analysis or Analysis(code), target, code.instructions[target].position, continuation)
    entry = frame_entry(code)
    instructions = prune([*entry, *prefix, *handover.instructions()], keep=len(entry))
    first = replace(code, instructions=instructions, consts=(None,), names=())
    return Split(_with_locals(first, [*extra_locals, *handover.temporaries]), (handover.resume,))


def replacement(code: Code, body: Sequence[Instruction], extra_locals: Iterable[str] = ()) -> Code:
    """Code that runs ``body`` in place of the original.

    It has the signature, variables, cells, free variables, name, file name and first line of the original; the beginning
    (COPY_FREE_VARS, MAKE_CELL, RESUME) is put before the body. ``extra_locals`` are names of further variables; names that
    exist already are left alone.
    """
    entry = frame_entry(code)
    instructions = prune([*entry, *body], keep=len(entry))
    return _with_locals(replace(code, instructions=instructions, consts=(None,), names=()), extra_locals)


def prologue_size(code: Code) -> int:
    """How many instructions come before the body: RESUME is the last of them."""
    return 1 + next(k for k, item in enumerate(code.instructions) if item.op is Op.RESUME)


def frame_entry(code: Code) -> list[Instruction]:
    """The instructions that a frame of this function has to begin with: free variables, cells, RESUME.

    In a resume function the cells are passed in, so its MAKE_CELL are jumped over; the instructions between them and RESUME
    restore the stack and belong to the body (see ``body_start``).
    """
    start = body_start(code)
    entry = code.instructions[:start]
    if entry and entry[-1].op is Op.RESUME:
        return list(entry)
    resume = code.instructions[prologue_size(code) - 1]
    return [*entry, Instruction(Op.RESUME, 0, resume.position)]


def body_start(code: Code) -> int:
    """Index of the first instruction that an evaluator has to look at: what comes before only sets up the frame.

    In an ordinary function this is the one after RESUME. In a resume function it is the first one that restores variables
    and stack.
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
    """Whether this is a resume function that is given cells: an argument that is a cell variable then holds the raw cell."""
    instructions = code.instructions
    k = int(instructions[0].op is Op.COPY_FREE_VARS)
    return instructions[k].op is Op.JUMP and instructions[k + 1].op is Op.MAKE_CELL


def reads_frame(code: Code) -> bool:
    """Whether a function mentions something that can look at all variables of its frame.

    A resume function keeps the names of the original, for ``locals`` may be on the stack.
    """
    return not FRAME_READERS.isdisjoint(code.names)


def prune(instructions: list[Instruction], keep: int = 0) -> list[Instruction]:
    """Drop what cannot be reached, except the first ``keep`` instructions.

    The interpreter sometimes looks for the handler of the code unit before the current instruction: when a signal is noticed
    by a jump back to a loop's head, or (in the versions with ``looks_up_early``) when a called Python function raises. So
    where the instruction before had another handler than the one now before, a NOP takes its place.
    """
    seen = reachable(instructions)
    labels = {item.label for k, item in enumerate(instructions) if k in seen}
    out: list[Instruction] = []
    before: Instruction | None = None
    for k, item in enumerate(instructions):
        if k not in seen and k >= keep:
            before = item
            continue
        if before is not None and out:
            handler = before.handler
            if handler is not None and handler.target not in labels:
                handler = item.handler
            if handler != out[-1].handler:
                out.append(Instruction(Op.NOP, None, before.position, handler))
        out.append(item)
        before = None
    return out


def _with_locals(code: Code, names: Iterable[str]) -> Code:
    known = {*code.varnames, *code.cellvars, *code.freevars}
    added = [name for name in dict.fromkeys(names) if name not in known]
    return replace(code, varnames=(*code.varnames, *added)) if added else code


@dataclass
class _Cut:
    resumes: list[Resume]
    temporaries: list[str]


def _cut_body(code: Code, k: int, analysis: Analysis, continuation: Continuation | None) -> tuple[list[Instruction], _Cut]:
    """The whole body with a handover after instruction k, on both ways if it branches."""
    item = code.instructions[k]
    body = list(code.instructions)
    cut = _Cut([], [])

    def hand_over(target: int) -> list[Instruction]:
        handover = Handover(analysis, target, item.position, continuation)
        cut.resumes.append(handover.resume)
        cut.temporaries += handover.temporaries
        return handover.instructions()

    inline: list[Instruction] = []
    if item.op not in NO_FALL_THROUGH:
        inline = hand_over(k + 1)
    if item.op in JUMPS:
        away = Label()
        out_of_line = hand_over(analysis.places[item.arg])
        out_of_line[0] = with_label(out_of_line[0], away)
        body[k] = Instruction(item.op, away, item.position, item.handler, item.label)
        body += out_of_line
    body[k + 1 : k + 1] = inline
    return body, cut


class Handover:
    """One crossing from a first half to its resume function."""

    def __init__(self, analysis: Analysis, target: int, position: Position, continuation: Continuation | None = None) -> None:
        state = analysis.states[target]
        if state is None:
            raise ValueError(f"instruction {target} cannot be reached")
        self.analysis = analysis
        self.code = analysis.code
        self.target = target
        self.position = position
        self.continuation = continuation
        self.state: State = state
        taken = {*analysis.slots, *self.code.freevars}
        prefix = "."
        while any(name.startswith(prefix + "s") for name in taken):
            prefix += "."
        self.temporaries = [f"{prefix}s{k}" for k in range(len(state.stack))]
        self.variables = self._variables()
        passed = [name for name, kind in zip(self.temporaries, state.stack, strict=True) if kind is not Entry.NULL]
        self.parameters = [*self.variables, *passed]
        self.resume = Resume(self._resume(), target, tuple(self.variables), state.stack)

    def _variables(self) -> list[str]:
        """Slots to pass: those that are perhaps bound and are read or overwritten later.

        A dead variable stays in the first half, so that it lives as long as before; if it is
        assigned or deleted later, its old value must be let go then, so it is passed too.
        """
        analysis, code = self.analysis, self.code
        wanted = analysis.live[self.target] | analysis.written_after(self.target)
        if reads_frame(code):
            wanted = -1
        names = analysis.names(wanted & self.state.maybe_bound)
        if "__class__" in code.freevars and code.argcount:
            # super() without arguments reads the first slot of the frame.
            first = code.varnames[0]
            names = [first, *(name for name in names if name != first)]
        return names

    def _item(self, op: Op, arg: object = None, handler: Handler | None = None) -> Instruction:
        return Instruction(op, arg, self.position, handler)

    def _is_bound(self, name: str) -> bool:
        return bool(self.state.bound & self.analysis.bit[name])

    def instructions(self) -> list[Instruction]:
        """What the first half does from here: spill the stack, hand over, return.

        None of it has an exception handler: what the resume function raises must pass by
        the handlers of the first half, which the resume function has too.
        """
        make = self._item
        out = [make(Op.STORE_FAST, name) for name in reversed(self.temporaries)]
        callee = self._make_function()
        if self.continuation is not None:
            callee, function = [make(Op.LOAD_CONST, self.continuation)], callee
        else:
            function = []
        null = make(Op.PUSH_NULL)
        out += [null, *callee] if RUNNING.null_below_callable else [*callee, null]
        out += function
        first_depth = 3 if function else 2
        late: list[Instruction] = []
        entries = dict(zip(self.temporaries, self.state.stack, strict=True))
        for depth, name in enumerate(self.parameters, start=first_depth):
            entry = entries.get(name)
            if entry is Entry.MAYBE_NULL or (entry is None and not self._is_bound(name)):
                self._load_perhaps(name, depth, out, late)
            else:
                out.append(make(Op.LOAD_FAST_AND_CLEAR, name))
        out.append(make(Op.CALL, Call(len(self.parameters) + bool(function))))
        out.append(make(Op.RETURN_VALUE))
        return out + late

    def _make_function(self) -> list[Instruction]:
        """Push the resume function; its free variables are this frame's."""
        make = self._item
        free = self.code.freevars
        load = [make(Op.LOAD_CLOSURE, name) for name in free]
        if free:
            load.append(make(Op.BUILD_TUPLE, len(free)))
        load.append(make(Op.LOAD_CONST, self.resume.native))
        load.append(make(Op.MAKE_FUNCTION, CLOSURE_FLAG if free else 0))
        return load

    def _load_perhaps(self, name: str, depth: int, out: list[Instruction], late: list[Instruction]) -> None:
        """Push a variable, or UNBOUND when reading it raises."""
        handler = Handler(Label(), depth, False)
        done = Label()
        out.append(self._item(Op.LOAD_FAST_CHECK, name, handler))
        out.append(self._item(Op.DELETE_FAST, name))
        out.append(with_label(self._item(Op.NOP), done))
        late.append(with_label(self._item(Op.POP_TOP), handler.target))
        late.append(self._item(Op.LOAD_CONST, UNBOUND))
        late.append(self._item(Op.JUMP, done))

    def _resume(self) -> Code:
        """The function that carries on."""
        code, make = self.code, self._item
        body = list(code.instructions)
        entry = body[self.target]
        label = entry.label
        if label is None:
            label = Label()
            body[self.target] = with_label(entry, label)
        start: list[Instruction] = []
        if code.freevars:
            start.append(make(Op.COPY_FREE_VARS, len(code.freevars)))
        start += self._skipped_cells()
        for name in self.variables:
            if not self._is_bound(name):
                bound = Label()
                start += [*self._jump_if_given(name, bound), make(Op.DELETE_FAST, name)]
                start.append(with_label(make(Op.NOP), bound))
        start += self._restored_stack()
        # Last, and with the handler of the place it leads to: a signal can be seen here.
        start.append(make(Op.RESUME, 0, entry.handler))
        start.append(make(Op.JUMP, label))
        others = [name for name in code.varnames if name not in self.parameters]
        hidden = [name for name in self.temporaries if name not in self.parameters]
        return replace(
            code,
            flags=code.flags & ~(CO_VARARGS | CO_VARKEYWORDS),
            argcount=len(self.parameters),
            posonly_argcount=0,
            kwonly_argcount=0,
            varnames=(*self.parameters, *others, *hidden),
            instructions=prune(start + body, keep=len(start)),
            # No docstring: that would be the first constant.
            consts=(None,),
        )

    def _skipped_cells(self) -> list[Instruction]:
        """MAKE_CELL for the cells that are passed, never executed: ``locals()`` scans for them."""
        make = self._item
        cells = [name for name in self.variables if name in self.code.cellvars]
        if not cells:
            return []
        over = Label()
        return [
            make(Op.JUMP, over),
            *(make(Op.MAKE_CELL, name) for name in cells),
            with_label(make(Op.NOP), over),
        ]

    def _restored_stack(self) -> list[Instruction]:
        """Push the entries again, letting go of the arguments."""
        make = self._item
        out: list[Instruction] = []
        for name, kind in zip(self.temporaries, self.state.stack, strict=True):
            if kind is Entry.NULL:
                out.append(make(Op.PUSH_NULL))
            elif kind is Entry.MAYBE_NULL:
                given, done = Label(), Label()
                out += [*self._jump_if_given(name, given), make(Op.PUSH_NULL)]
                out.append(make(Op.JUMP, done))
                out.append(with_label(make(Op.LOAD_FAST, name), given))
                out.append(with_label(make(Op.DELETE_FAST, name), done))
            else:
                out.append(make(Op.LOAD_FAST_AND_CLEAR, name))
        return out

    def _jump_if_given(self, name: str, label: Label) -> list[Instruction]:
        make = self._item
        return [
            make(Op.LOAD_FAST, name),
            make(Op.LOAD_CONST, UNBOUND),
            make(Op.IS_OP, 0),
            make(Op.POP_JUMP_IF_FALSE, label),
        ]
