"""One Python frame under evaluation: stack, variables, position, handled exceptions."""

from __future__ import annotations

import builtins
import types
from dataclasses import dataclass, field, replace
from typing import Any

from bytecode_dynamo.bytecode import Code, Instruction, Label
from bytecode_dynamo.bytecode.decode import Decoded
from bytecode_dynamo.bytecode.versions import RUNNING
from bytecode_dynamo.errors import Place
from bytecode_dynamo.guards.source import (
    AttrSource,
    BuiltinSource,
    ConstSource,
    GlobalSource,
    ItemSource,
    Source,
)

from .tracker import VariableTracker


class FrameExit(Exception):
    """A frame returns or yields a value."""

    def __init__(self, value: VariableTracker, yielded: bool = False) -> None:
        super().__init__()
        self.value = value
        self.yielded = yielded


@dataclass(slots=True)
class Suspended:
    """Where a generator stands."""

    index: int
    stack: tuple[VariableTracker, ...]
    slots: dict[str, VariableTracker]
    handled: tuple[VariableTracker, ...]
    handles: bool
    """Whether closing it may have effects."""


@dataclass(slots=True)
class GlobalNames:
    """A function's global variables and their sources."""

    mapping: dict[str, Any]
    builtins: dict[str, Any]
    is_root: bool
    base: Source | None = None

    def source(self, name: str) -> Source:
        """The source of a variable that exists."""
        if self.is_root:
            return GlobalSource(name) if name in self.mapping else BuiltinSource(name)
        if name in self.mapping:
            assert isinstance(self.base, ConstSource)
            is_module = isinstance(self.base.value, types.ModuleType)
            return AttrSource(self.base, name) if is_module else ItemSource(self.base, name)
        return AttrSource(ConstSource(builtins), name)


@dataclass(slots=True)
class Snapshot:
    """A copy of what changes in a frame from instruction to instruction."""

    index: int
    stack: list[VariableTracker]
    slots: dict[str, VariableTracker]
    handled: list[VariableTracker]
    steps: int = 0
    """The number of instructions evaluated in the root frame so far."""


@dataclass(slots=True)
class Frame:
    """A frame; ``slots`` holds fast locals and cells, without the unbound ones."""

    decoded: Decoded
    names: GlobalNames
    slots: dict[str, VariableTracker]
    parent: Frame | None = None
    index: int = 0
    stack: list[VariableTracker] = field(default_factory=list)
    handled: list[VariableTracker] = field(default_factory=list)
    closure: tuple[VariableTracker, ...] = ()
    current: int = 0
    steps: int = 0
    function_name: str = ""
    visited: set[int] | None = None
    """The root frame's evaluated instructions, if an observer wants them."""
    namespace: Any = None
    """The dict that the body of a class statement fills."""
    function: VariableTracker | None = None
    callee: VariableTracker | None = None
    """What a call instruction that has begun calls."""
    started: int = 0
    """The instructions of the capture before the current one."""

    @property
    def code(self) -> Code:
        """The neutral code."""
        return self.decoded.neutral

    def instruction(self) -> Instruction:
        """The instruction being evaluated."""
        return self.decoded.instructions[self.current]

    def place(self) -> Place:
        """The line being evaluated."""
        line = self.instruction().position[0]
        code = self.decoded.neutral
        return Place(code.filename, line or code.first_line, code.name)

    # -- stack -------------------------------------------------------------------------------------

    def push(self, value: VariableTracker) -> None:
        """Push one entry."""
        self.stack.append(value)

    def pop_many(self, count: int) -> list[VariableTracker]:
        """Pop entries, in the order in which they were pushed."""
        if not count:
            return []
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def jump(self, label: Label) -> None:
        """Continue at a label."""
        self.index = self.decoded.places[label]

    def snapshot(self) -> Snapshot:
        """A copy of the state before the current instruction, for :meth:`restore`."""
        return Snapshot(
            self.current, list(self.stack), dict(self.slots), list(self.handled), self.steps
        )

    def suspend(self) -> Suspended:
        """The state of a generator that just yielded."""
        return Suspended(
            self.index,
            tuple(self.stack),
            dict(self.slots),
            tuple(self.handled),
            self.decoded.handles,
        )

    def suspended_copy(self, state: Suspended | None) -> Frame:
        """A frame that continues from a state (None: from the beginning)."""
        copy = replace(self, slots=dict(self.slots), stack=[], handled=[], parent=None)
        if state is not None:
            copy.index, copy.stack = state.index, list(state.stack)
            copy.slots, copy.handled = dict(state.slots), list(state.handled)
        return copy

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot."""
        self.index = self.current = snapshot.index
        self.stack, self.slots = list(snapshot.stack), dict(snapshot.slots)
        self.handled = list(snapshot.handled)


def place_stack(frame: Frame | None) -> tuple[Place, ...]:
    """The lines of a frame and its callers, innermost last."""
    places: list[Place] = []
    while frame is not None:
        places.append(frame.place())
        frame = frame.parent
    return tuple(reversed(places))


def finish_send(frame: Frame, result: VariableTracker) -> None:
    """The stack after a delegated generator is done."""
    if RUNNING.send_jump_effect < 0:
        frame.stack.pop()
    frame.push(result)
