"""Writes neutral instructions: one method per operation of generated code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .instruction import (
    NO_POSITION,
    Call,
    Global,
    Handler,
    Instruction,
    Label,
    Op,
    Position,
    with_label,
)
from .versions import RUNNING

MOST_ARGUMENTS = 255
"""CPython's compiler writes no calls that need EXTENDED_ARG. Behind one that it has specialised,
3.11 goes on in the middle of an instruction.
"""


class Emitter:
    """Collects instructions in ``instructions``."""

    def __init__(self, position: Position = NO_POSITION, handler: Handler | None = None) -> None:
        self.instructions: list[Instruction] = []
        self.position = position
        self.handler = handler
        self._pending: Label | None = None

    def emit(self, op: Op, arg: object = None) -> None:
        """Append one instruction."""
        label, self._pending = self._pending, None
        self.instructions.append(Instruction(op, arg, self.position, self.handler, label))

    def append(self, instruction: Instruction) -> None:
        """Append an instruction of another list as it is; a pending label goes before it."""
        if self._pending is not None:
            if instruction.label is not None:
                self.emit(Op.NOP)
            else:
                instruction, self._pending = with_label(instruction, self._pending), None
        self.instructions.append(instruction)

    def label(self, label: Label) -> None:
        """Put a label before the next instruction."""
        if self._pending is not None:
            self.emit(Op.NOP)
        self._pending = label

    @contextmanager
    def at(self, position: Position) -> Iterator[None]:
        """Set the source position of the instructions emitted inside."""
        before, self.position = self.position, position
        try:
            yield
        finally:
            self.position = before

    # Variables and constants.

    def load_const(self, value: object) -> None:
        """Push any object."""
        self.emit(Op.LOAD_CONST, value)

    def load_fast(self, name: str) -> None:
        """Push a local variable that is bound."""
        self.emit(Op.LOAD_FAST, name)

    def store_fast(self, name: str) -> None:
        """Pop into a local variable."""
        self.emit(Op.STORE_FAST, name)

    def delete_fast(self, name: str) -> None:
        """Unbind a local variable that is bound."""
        self.emit(Op.DELETE_FAST, name)

    def load_deref(self, name: str) -> None:
        """Push the contents of a cell or free variable."""
        self.emit(Op.LOAD_DEREF, name)

    def store_deref(self, name: str) -> None:
        """Pop into a cell or free variable."""
        self.emit(Op.STORE_DEREF, name)

    def load_closure(self, name: str) -> None:
        """Push the cell itself of a cell or free variable."""
        self.emit(Op.LOAD_CLOSURE, name)

    def load_global(self, name: str) -> None:
        """Push a global (or built-in) of the running function."""
        self.emit(Op.LOAD_GLOBAL, Global(name))

    # Attributes and items.

    def load_attr(self, name: str) -> None:
        """Object -> attribute."""
        self.emit(Op.LOAD_ATTR, name)

    def store_attr(self, name: str) -> None:
        """Value, object -> nothing."""
        self.emit(Op.STORE_ATTR, name)

    def load_item(self, key: object) -> None:
        """Container -> its item under a constant key."""
        self.load_const(key)
        self.emit(Op.BINARY_SUBSCR)

    # Stack.

    def pop(self) -> None:
        """Drop the top entry."""
        self.emit(Op.POP_TOP)

    def duplicate(self) -> None:
        """Push the top entry again."""
        self.emit(Op.COPY, 1)

    def copy(self, depth: int) -> None:
        """Push entry ``depth`` again; 1 is the top."""
        self.emit(Op.COPY, depth)

    def swap(self, depth: int) -> None:
        """Exchange the top with entry ``depth``; 2 is the one below the top."""
        self.emit(Op.SWAP, depth)

    def push_null(self) -> None:
        """Push NULL."""
        self.emit(Op.PUSH_NULL)

    def load_lasti(self, depth: int) -> None:
        """Push an entry of the kind that a handler with ``lasti`` finds below the exception,
        ``depth`` entries being there.

        Only its kind matters: RERAISE takes from it the line of a frame that is about to end. Where
        it is no object, only an exception pushes one.
        """
        if RUNNING.lasti_is_object:
            self.load_const(0)
            return
        self.load_const(None)
        outer, self.handler = self.handler, Handler(Label(), depth, True)
        self.emit(Op.RAISE_VARARGS, 1)
        self.label(self.handler.target)
        self.handler = outer
        self.pop()

    # Containers.

    def build_tuple(self, size: int) -> None:
        """Entries -> tuple."""
        self.emit(Op.BUILD_TUPLE, size)

    def build_list(self, size: int) -> None:
        """Entries -> list."""
        self.emit(Op.BUILD_LIST, size)

    def build_set(self, size: int) -> None:
        """Entries -> set."""
        self.emit(Op.BUILD_SET, size)

    def build_dict(self, size: int) -> None:
        """Keys and values, alternating -> dict."""
        self.emit(Op.BUILD_MAP, size)

    def build_slice(self, size: int) -> None:
        """Start, stop[, step] -> slice."""
        self.emit(Op.BUILD_SLICE, size)

    def unpack(self, size: int) -> None:
        """Sequence -> its items, the first on top."""
        self.emit(Op.UNPACK_SEQUENCE, size)

    # Calls.

    def load_callee(self, load: Callable[[], None]) -> None:
        """Push what ``load`` pushes as the callable of a later ``call`` or ``call_ex``."""
        if RUNNING.null_below_callable:
            self.push_null()
            load()
        else:
            load()
            self.push_null()

    def load_callee_const(self, function: object) -> None:
        """Push a constant as the callable of a later call."""
        self.load_callee(lambda: self.load_const(function))

    def call(self, count: int, keywords: Sequence[str] = ()) -> None:
        """Callee, ``count`` arguments, the last of them named -> result."""
        if count > MOST_ARGUMENTS and not keywords:
            self.build_tuple(count)
            self.call_ex(has_keywords=False)
            return
        self.emit(Op.CALL, Call(count, tuple(keywords)))

    def call_const(
        self, function: object, loads: Sequence[Callable[[], None]], keywords: Sequence[str] = ()
    ) -> None:
        """Call a constant with arguments that each ``load`` pushes."""
        self.load_callee_const(function)
        for load in loads:
            load()
        self.call(len(loads), keywords)

    def call_ex(self, has_keywords: bool) -> None:
        """Callee, tuple[, dict] -> result."""
        self.emit(Op.CALL_FUNCTION_EX, int(has_keywords))

    def load_method(self, name: str) -> None:
        """Object -> callee of a later ``call``."""
        self.emit(Op.LOAD_METHOD, name)

    # Control flow.

    def jump(self, label: Label) -> None:
        """Go to a label."""
        self.emit(Op.JUMP, label)

    def return_value(self) -> None:
        """Return the top entry."""
        self.emit(Op.RETURN_VALUE)
