"""The handover from the first half of a split function to its resume function: the values passed,
and their restoration.

See ``resume.py`` for the whole picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import CodeType
from weakref import WeakValueDictionary

from .analysis import Analysis, Entry, State, reachable
from .decode import decode, remember
from .emit import Emitter
from .encode import encode
from .instruction import (
    CO_VARARGS,
    CO_VARKEYWORDS,
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
"""Stands for an unbound variable or a NULL stack entry while they are passed to a resume function.
"""

Continuation = Callable[..., object]


@dataclass(frozen=True)
class Resume:
    """A function that carries on at one instruction of the original.

    ``target`` is the index of that instruction in the original, ``variables`` the slots passed
    first, ``stack`` the kinds of the stack entries there; those that ``is_passed`` are passed after
    the variables, bottom first. ``native`` is the code object (``decode(native) is code``): always
    the same one for one target of one original, while it lives.
    """

    code: Code
    native: CodeType
    target: int
    variables: tuple[str, ...]
    stack: tuple[Entry, ...]


class Origin:
    """A function that is split, and its resume functions."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.natives: WeakValueDictionary[tuple[int, bool, bool], CodeType] = WeakValueDictionary()
        self._analysis: Analysis | None = None

    @property
    def analysis(self) -> Analysis:
        """The facts about the function."""
        if self._analysis is None:
            self._analysis = Analysis(self.code)
        return self._analysis


@dataclass(frozen=True, eq=False)
class ResumeMark:
    """The constant that identifies a resume function: its origin, target, and instruction indices.

    ``places`` maps indices into the resume function's instructions to indices into the origin's.
    """

    origin: Origin
    target: int
    places: Mapping[int, int]


def resume_mark(code: Code) -> ResumeMark | None:
    """The mark of a resume function; None for any other function."""
    return next((const for const in code.consts if type(const) is ResumeMark), None)


def origin_of(code: Code, analysis: Analysis | None = None) -> Origin:
    """The origin of a function that is not a resume function (created once for each ``Code``)."""
    origin = code.__dict__.get("origin")
    if origin is None:
        origin = code.__dict__["origin"] = Origin(code)
        if analysis is not None:
            origin.__dict__["analysis"] = analysis
    return origin


def reads_frame(code: Code) -> bool:
    """Whether a function mentions a name that can inspect all variables of its frame.

    A resume function keeps the names of the original, for ``locals`` may be on the stack.
    """
    return not FRAME_READERS.isdisjoint(code.names)


def prune(instructions: list[Instruction], keep: int = 0) -> list[Instruction]:
    """Drop what cannot be reached, except the first ``keep`` instructions.

    The interpreter sometimes looks for the handler of the code unit before the current instruction:
    when a signal is noticed by a jump back to a loop's head, or (in the versions with
    ``looks_up_early``) when a called Python function raises. So where the instruction before had
    another handler than the one now before, a NOP takes its place.
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


def is_passed(kind: Entry) -> bool:
    """Whether a stack entry is an argument of the resume function; others are created there."""
    return kind is not Entry.NULL and (kind is not Entry.LASTI or RUNNING.lasti_is_object)


class Handover:
    """One handover from a first half to its resume function.

    With ``enters`` what the resume function takes is in a list, which it empties: its caller waits,
    and would hold arguments meanwhile. With ``calls`` it begins with another call in place of the
    one at ``target``: a callable and its argument are passed instead of the operands.
    """

    def __init__(
        self,
        origin: Origin,
        target: int,
        position: Position,
        continuation: Continuation | None = None,
        *,
        enters: bool = False,
        calls: bool = False,
    ) -> None:
        analysis = origin.analysis
        state = analysis.states[target]
        if state is None:
            raise ValueError(f"instruction {target} cannot be reached")
        self.origin = origin
        self.analysis = analysis
        self.code = origin.code
        self.target = target
        self.position = position
        self.continuation = continuation
        self.enters, self.calls = enters, calls
        self.state: State = state
        self.stack = state.stack
        if calls:
            after = analysis.states[target + 1]
            assert after is not None
            self.stack = after.stack[:-1]
        taken = {*analysis.slots, *self.code.freevars}
        prefix = "."
        while any(name.startswith(prefix + "s") for name in taken):
            prefix += "."
        self.temporaries = [f"{prefix}s{k}" for k in range(len(self.stack))]
        self.list = f"{prefix}list"
        self.call = [f"{prefix}call", f"{prefix}argument"] if calls else []
        self.variables = self._variables()
        passed = [
            name for name, kind in zip(self.temporaries, self.stack, strict=True) if is_passed(kind)
        ]
        self.parameters = [*self.variables, *passed, *self.call]
        self.resume = self._find_resume()

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
        first = self._owner_of_super()
        return [*first, *(name for name in names if name not in first)]

    def _owner_of_super(self) -> tuple[str, ...]:
        """The first slot of the frame, which super() without arguments reads."""
        code = self.code
        return code.varnames[:1] if "__class__" in code.freevars and code.argcount else ()

    def live(self) -> frozenset[str]:
        """The variables that are read later, by an instruction or by a function that looks at the
        frame; the others that are passed are overwritten or deleted.
        """
        if reads_frame(self.code):
            return frozenset(self.variables)
        names = self.analysis.names(self.analysis.live[self.target])
        return frozenset((*self._owner_of_super(), *names))

    def _item(self, op: Op, arg: object = None, handler: Handler | None = None) -> Instruction:
        return Instruction(op, arg, self.position, handler)

    def _is_bound(self, name: str) -> bool:
        return bool(self.state.bound & self.analysis.bit[name])

    def instructions(self) -> list[Instruction]:
        """The rest of the first half: spill the stack, hand over, return.

        None of it has an exception handler: an exception of the resume function must bypass the
        handlers of the first half, which the resume function has too.
        """
        make = self._item
        entries = dict(zip(self.temporaries, self.stack, strict=True))
        out: list[Instruction] = []
        for name in reversed(self.temporaries):
            keep = is_passed(entries[name]) or entries[name] is Entry.NULL
            out.append(make(Op.STORE_FAST, name) if keep else make(Op.POP_TOP))
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

    def _load_perhaps(
        self, name: str, depth: int, out: list[Instruction], late: list[Instruction]
    ) -> None:
        """Push a variable, or UNBOUND if it is unbound."""
        handler = Handler(Label(), depth, False)
        done = Label()
        out.append(self._item(Op.LOAD_FAST_CHECK, name, handler))
        out.append(self._item(Op.DELETE_FAST, name))
        out.append(with_label(self._item(Op.NOP), done))
        late.append(with_label(self._item(Op.POP_TOP), handler.target))
        late.append(self._item(Op.LOAD_CONST, UNBOUND))
        late.append(self._item(Op.JUMP, done))

    def _find_resume(self) -> Resume:
        """The resume function: an existing one, or a new one."""
        place = self.target, self.enters, self.calls
        native = self.origin.natives.get(place)
        if native is None:
            code = self._resume()
            native = encode(code)
            remember(native, code)
            self.origin.natives[place] = native
        return Resume(decode(native), native, self.target, tuple(self.variables), self.stack)

    def _resume(self) -> Code:
        code, make = self.code, self._item
        body = list(code.instructions)
        entry = body[self.target]
        label = entry.label
        if label is None:
            label = Label()
            body[self.target] = with_label(entry, label)
        if self.calls:
            body[self.target] = Instruction(Op.CALL, Call(1), entry.position, entry.handler, label)
        start: list[Instruction] = []
        if code.freevars:
            start.append(make(Op.COPY_FREE_VARS, len(code.freevars)))
        start += self._skipped_cells()
        if self.enters:
            start += self._emptied_list()
        for name in self.variables:
            if not self._is_bound(name):
                bound = Label()
                start += [*self._jump_if_given(name, bound), make(Op.DELETE_FAST, name)]
                start.append(with_label(make(Op.NOP), bound))
        start += self._restored_stack()
        # Last, and with the handler of the place it leads to: a signal can be seen here.
        start.append(make(Op.RESUME, 0, entry.handler))
        start.append(make(Op.JUMP, label))
        places = {id(item): k for k, item in enumerate(body)}
        instructions = prune(start + body, keep=len(start))
        mark = ResumeMark(
            self.origin,
            self.target,
            {j: places[id(item)] for j, item in enumerate(instructions) if id(item) in places},
        )
        others = [name for name in code.varnames if name not in self.parameters]
        hidden = [name for name in self.temporaries if name not in self.parameters]
        entered = [self.list] if self.enters else []
        return replace(
            code,
            flags=code.flags & ~(CO_VARARGS | CO_VARKEYWORDS),
            argcount=1 if self.enters else len(self.parameters),
            posonly_argcount=0,
            kwonly_argcount=0,
            varnames=(*entered, *self.parameters, *others, *hidden),
            instructions=instructions,
            # No docstring: that would be the first constant.
            consts=(None, mark),
        )

    def _emptied_list(self) -> list[Instruction]:
        """Take the parameters out of the list, in which the variables are last: what the stack
        holds is built by then, so dead variables that hold it too are known.
        """
        make = self._item
        count = len(self.variables)
        entered = [*self.parameters[count:], *self.parameters[:count]]
        return [
            make(Op.LOAD_FAST, self.list),
            make(Op.UNPACK_SEQUENCE, len(entered)),
            *(make(Op.STORE_FAST, name) for name in entered),
            make(Op.LOAD_FAST_AND_CLEAR, self.list),
            make(Op.LOAD_CONST, None),
            make(Op.LOAD_CONST, None),
            make(Op.BUILD_SLICE, 2),
            make(Op.DELETE_SUBSCR),
        ]

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
        """Push the entries again and release the arguments."""
        make = self._item
        out: list[Instruction] = []
        for depth, (name, kind) in enumerate(zip(self.temporaries, self.stack, strict=True)):
            if kind is Entry.NULL:
                out.append(make(Op.PUSH_NULL))
            elif not is_passed(kind):
                emitter = Emitter(self.position)
                emitter.load_lasti(depth)
                out += emitter.instructions
            elif kind is Entry.MAYBE_NULL:
                given, done = Label(), Label()
                out += [*self._jump_if_given(name, given), make(Op.PUSH_NULL)]
                out.append(make(Op.JUMP, done))
                out.append(with_label(make(Op.LOAD_FAST, name), given))
                out.append(with_label(make(Op.DELETE_FAST, name), done))
            else:
                out.append(make(Op.LOAD_FAST_AND_CLEAR, name))
        if self.call:
            null = make(Op.PUSH_NULL)
            function, argument = (make(Op.LOAD_FAST_AND_CLEAR, name) for name in self.call)
            out += [null, function] if RUNNING.null_below_callable else [function, null]
            out.append(argument)
        return out

    def _jump_if_given(self, name: str, label: Label) -> list[Instruction]:
        make = self._item
        return [
            make(Op.LOAD_FAST, name),
            make(Op.LOAD_CONST, UNBOUND),
            make(Op.IS_OP, 0),
            make(Op.POP_JUMP_IF_FALSE, label),
        ]
