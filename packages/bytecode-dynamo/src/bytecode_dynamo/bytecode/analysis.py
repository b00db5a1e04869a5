"""Facts about every point of a neutral function: stack contents, bound and live variables."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from .instruction import JUMPS, NO_FALL_THROUGH, Code, Instruction, Label, Op, label_positions
from .stack_effect import depth_after_jump, effect, successors
from .versions import RUNNING


class Entry(Enum):
    """The kind of a stack entry."""

    VALUE = auto()
    NULL = auto()
    MAYBE_NULL = auto()
    LASTI = auto()


class State(NamedTuple):
    """The facts before an instruction; variables are bits of an integer."""

    stack: tuple[Entry, ...]
    bound: int
    maybe_bound: int


# Instructions that only push (positive) or pop entries, though their stack effect mentions those
# below.
_KEEPS_BELOW = {
    Op.LIST_APPEND: -1,
    Op.SET_ADD: -1,
    Op.MAP_ADD: -2,
    Op.LIST_EXTEND: -1,
    Op.SET_UPDATE: -1,
    Op.DICT_UPDATE: -1,
    Op.DICT_MERGE: -1,
    Op.WITH_EXCEPT_START: 1,
}
READS_SLOT = frozenset(
    {
        Op.LOAD_FAST,
        Op.LOAD_FAST_CHECK,
        Op.LOAD_FAST_AND_CLEAR,
        Op.DELETE_FAST,
        Op.LOAD_CLOSURE,
        Op.LOAD_DEREF,
        Op.STORE_DEREF,
        Op.DELETE_DEREF,
        Op.MAKE_CELL,
    }
)
CLEARS_SLOT = frozenset({Op.DELETE_FAST, Op.LOAD_FAST_AND_CLEAR})


class Analysis:
    """Forward and backward dataflow over one function."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.places = label_positions(code.instructions)
        # A slot holds a value or, for a cell variable after MAKE_CELL, the cell itself.
        own_cells = [name for name in code.cellvars if name not in code.varnames]
        self.slots = [*code.varnames, *own_cells]
        self.bit = {name: 1 << k for k, name in enumerate(self.slots)}
        self.states: list[State | None] = [None] * len(code.instructions)
        self._flow_forward()
        self.live = self._flow_backward()

    def _flow_forward(self) -> None:
        code = self.code
        filled = (1 << code.parameter_count) - 1
        pending = [0]
        self.states[0] = State((), filled, filled)
        while pending:
            k = pending.pop()
            state = self.states[k]
            assert state is not None
            item = code.instructions[k]
            out = self._after(item, state)
            if item.handler is not None:
                target, depth, lasti = item.handler
                stack = state.stack[:depth] + (Entry.LASTI,) * lasti + (Entry.VALUE,)
                # The instruction may raise before or after it changes a variable.
                raised = State(stack, state.bound & out.bound, state.maybe_bound | out.maybe_bound)
                self._join(self.places[target], raised, pending)
            if item.op in JUMPS:
                depth = depth_after_jump(item, len(state.stack))
                jumped = out._replace(stack=out.stack[:depth])
                self._join(self.places[item.arg], jumped, pending)
            if item.op not in NO_FALL_THROUGH:
                self._join(k + 1, out, pending)

    def _join(self, k: int, new: State, pending: list[int]) -> None:
        old = self.states[k]
        if old is None:
            self.states[k] = new
            pending.append(k)
            return
        if len(old.stack) != len(new.stack):
            raise ValueError(f"stack depth differs at {k}")
        stack = tuple(
            a if a is b else Entry.MAYBE_NULL for a, b in zip(old.stack, new.stack, strict=True)
        )
        joined = State(stack, old.bound & new.bound, old.maybe_bound | new.maybe_bound)
        if joined != old:
            self.states[k] = joined
            pending.append(k)

    def _after(self, item: Instruction, state: State) -> State:
        stack, bound, maybe = state
        op = item.op
        bit = self.bit.get(item.arg, 0) if type(item.arg) is str else 0
        if op is Op.LOAD_FAST_AND_CLEAR:
            entry = Entry.VALUE
            if bit and not bound & bit:
                entry = Entry.MAYBE_NULL if maybe & bit else Entry.NULL
            return State((*stack, entry), bound & ~bit, maybe & ~bit)
        if op is Op.STORE_FAST:
            entry = stack[-1]
            bound = bound & ~bit if entry in (Entry.NULL, Entry.MAYBE_NULL) else bound | bit
            maybe = maybe & ~bit if entry is Entry.NULL else maybe | bit
        elif op is Op.DELETE_FAST:
            bound, maybe = bound & ~bit, maybe & ~bit
        elif op in (Op.MAKE_CELL, Op.LOAD_FAST, Op.LOAD_FAST_CHECK, Op.LOAD_CLOSURE):
            bound, maybe = bound | bit, maybe | bit
        return State(self._stack_after(item, stack), bound, maybe)

    @staticmethod
    def _stack_after(item: Instruction, stack: tuple[Entry, ...]) -> tuple[Entry, ...]:
        op = item.op
        if op is Op.COPY:
            return (*stack, stack[-item.arg])
        if op is Op.SWAP:
            entries = list(stack)
            entries[-1], entries[-item.arg] = entries[-item.arg], entries[-1]
            return tuple(entries)
        if op in _KEEPS_BELOW:
            change = _KEEPS_BELOW[op]
            return stack[:change] if change < 0 else (*stack, Entry.VALUE)
        popped, pushed = effect(item)
        rest = stack[: len(stack) - popped]
        if op is Op.PUSH_NULL:
            return (*rest, Entry.NULL)
        if op is Op.LOAD_GLOBAL and item.arg.push_null:
            return (*rest, *callable_pair(Entry.NULL))
        if op is Op.LOAD_METHOD or (op is Op.LOAD_SUPER_ATTR and item.arg.method):
            return (*rest, *callable_pair(Entry.MAYBE_NULL))
        if op in (Op.BEFORE_WITH, Op.BEFORE_ASYNC_WITH) and RUNNING.exit_is_pair:
            return (*rest, *callable_pair(Entry.MAYBE_NULL), Entry.VALUE)
        return (*rest, *(Entry.VALUE,) * pushed)

    def _flow_backward(self) -> list[int]:
        instructions = self.code.instructions
        live = [0] * len(instructions)
        changed = True
        while changed:
            changed = False
            for k in range(len(instructions) - 1, -1, -1):
                if self.states[k] is None:
                    continue
                item = instructions[k]
                out = 0
                for after in successors(instructions, self.places, k):
                    out |= live[after]
                bit = self.bit.get(item.arg, 0) if type(item.arg) is str else 0
                if bit:
                    if item.op is Op.STORE_FAST or item.op in CLEARS_SLOT:
                        out &= ~bit
                    if item.op in READS_SLOT:
                        out |= bit
                if item.handler is not None:
                    out |= live[self.places[item.handler.target]]
                if out != live[k]:
                    live[k] = out
                    changed = True
        return live

    def written_after(self, start: int) -> int:
        """Slots that some instruction reachable from here assigns or deletes."""
        bits = 0
        for k in reachable(self.code.instructions, start):
            item = self.code.instructions[k]
            if item.op is Op.STORE_FAST or item.op in CLEARS_SLOT:
                bits |= self.bit.get(item.arg, 0)
        return bits

    def names(self, bits: int) -> list[str]:
        """The slots of a set, in slot order."""
        return [name for name in self.slots if bits & self.bit[name]]


def callable_pair(null: Entry) -> tuple[Entry, Entry]:
    """A callable with its NULL, in the stack order of this version.

    For a method pair before 3.13 the entry below is the method or NULL, the one above is
    self or the attribute; from 3.13 the one below is the callable, above it self or NULL.
    """
    return (null, Entry.VALUE) if RUNNING.null_below_callable else (Entry.VALUE, null)


def reachable(instructions: list[Instruction], start: int = 0) -> set[int]:
    """Indices that can be executed from one of them, handlers included."""
    places: dict[Label, int] = label_positions(instructions)
    seen: set[int] = set()
    pending = [start]
    while pending:
        k = pending.pop()
        if k in seen:
            continue
        seen.add(k)
        pending.extend(successors(instructions, places, k))
        handler = instructions[k].handler
        if handler is not None:
            pending.append(places[handler.target])
    return seen
