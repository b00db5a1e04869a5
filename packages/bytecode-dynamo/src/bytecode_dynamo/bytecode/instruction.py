"""The neutral instruction set: one closed enumeration for every supported CPython version.

What differs from a native instruction: superinstructions are taken apart, caches and EXTENDED_ARG
are gone, keyword names are part of ``CALL``, jumps and handlers are ``Label`` objects, the
exception handler is a field of each instruction, a loop's landing (END_FOR) is gone. The order of
NULL and callable is the version's own (``NULL_BELOW_CALLABLE``), and so is how a ``with`` block
keeps its exit method (``EXIT_IS_PAIR``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple


class Op(Enum):
    """Every operation a decoded function can contain, whatever the interpreter version."""

    # Stack shuffling.
    NOP = auto()
    POP_TOP = auto()
    PUSH_NULL = auto()
    COPY = auto()
    SWAP = auto()
    # Constants, fast locals, cells.
    LOAD_CONST = auto()
    LOAD_FAST = auto()
    LOAD_FAST_CHECK = auto()
    LOAD_FAST_AND_CLEAR = auto()
    STORE_FAST = auto()
    DELETE_FAST = auto()
    MAKE_CELL = auto()
    COPY_FREE_VARS = auto()
    LOAD_CLOSURE = auto()
    LOAD_DEREF = auto()
    STORE_DEREF = auto()
    DELETE_DEREF = auto()
    # Names resolved at run time.
    LOAD_GLOBAL = auto()
    STORE_GLOBAL = auto()
    DELETE_GLOBAL = auto()
    LOAD_NAME = auto()
    STORE_NAME = auto()
    DELETE_NAME = auto()
    LOAD_CLASSDEREF = auto()
    LOAD_LOCALS = auto()
    LOAD_FROM_DICT_OR_DEREF = auto()
    LOAD_FROM_DICT_OR_GLOBALS = auto()
    # Attributes and items.
    LOAD_ATTR = auto()
    LOAD_METHOD = auto()
    LOAD_SUPER_ATTR = auto()
    STORE_ATTR = auto()
    DELETE_ATTR = auto()
    BINARY_SUBSCR = auto()
    STORE_SUBSCR = auto()
    DELETE_SUBSCR = auto()
    BINARY_SLICE = auto()
    STORE_SLICE = auto()
    # Operators.
    UNARY_POSITIVE = auto()
    UNARY_NEGATIVE = auto()
    UNARY_NOT = auto()
    UNARY_INVERT = auto()
    TO_BOOL = auto()
    BINARY_OP = auto()
    COMPARE_OP = auto()
    IS_OP = auto()
    CONTAINS_OP = auto()
    # Building and taking apart containers and strings.
    BUILD_TUPLE = auto()
    BUILD_LIST = auto()
    BUILD_SET = auto()
    BUILD_MAP = auto()
    BUILD_CONST_KEY_MAP = auto()
    BUILD_STRING = auto()
    BUILD_SLICE = auto()
    LIST_APPEND = auto()
    SET_ADD = auto()
    MAP_ADD = auto()
    LIST_EXTEND = auto()
    SET_UPDATE = auto()
    DICT_UPDATE = auto()
    DICT_MERGE = auto()
    LIST_TO_TUPLE = auto()
    UNPACK_SEQUENCE = auto()
    UNPACK_EX = auto()
    CONVERT_VALUE = auto()
    FORMAT_VALUE = auto()
    BUILD_INTERPOLATION = auto()
    BUILD_TEMPLATE = auto()
    # Pattern matching.
    GET_LEN = auto()
    MATCH_MAPPING = auto()
    MATCH_SEQUENCE = auto()
    MATCH_KEYS = auto()
    MATCH_CLASS = auto()
    # Calls and functions.
    CALL = auto()
    CALL_FUNCTION_EX = auto()
    MAKE_FUNCTION = auto()
    LOAD_BUILD_CLASS = auto()
    RETURN_VALUE = auto()
    # Control flow.
    JUMP = auto()
    JUMP_NO_INTERRUPT = auto()
    POP_JUMP_IF_FALSE = auto()
    POP_JUMP_IF_TRUE = auto()
    POP_JUMP_IF_NONE = auto()
    POP_JUMP_IF_NOT_NONE = auto()
    GET_ITER = auto()
    FOR_ITER = auto()
    # Exceptions and context managers.
    RAISE_VARARGS = auto()
    RERAISE = auto()
    PUSH_EXC_INFO = auto()
    POP_EXCEPT = auto()
    CHECK_EXC_MATCH = auto()
    CHECK_EG_MATCH = auto()
    PREP_RERAISE_STAR = auto()
    LOAD_ASSERTION_ERROR = auto()
    BEFORE_WITH = auto()
    WITH_EXCEPT_START = auto()
    # Imports and module or class level statements.
    IMPORT_NAME = auto()
    IMPORT_FROM = auto()
    IMPORT_STAR = auto()
    PRINT_EXPR = auto()
    SETUP_ANNOTATIONS = auto()
    CALL_INTRINSIC_1 = auto()
    CALL_INTRINSIC_2 = auto()
    # Generators and coroutines: carried through, never split.
    RESUME = auto()
    RETURN_GENERATOR = auto()
    YIELD_VALUE = auto()
    SEND = auto()
    END_SEND = auto()
    GET_YIELD_FROM_ITER = auto()
    GET_AWAITABLE = auto()
    GET_AITER = auto()
    GET_ANEXT = auto()
    BEFORE_ASYNC_WITH = auto()
    END_ASYNC_FOR = auto()
    CLEANUP_THROW = auto()
    ASYNC_GEN_WRAP = auto()

    # Identity hashing: the default hashes the name on every table lookup.
    __hash__ = object.__hash__


CONDITIONAL_JUMPS = frozenset(
    {
        Op.POP_JUMP_IF_FALSE,
        Op.POP_JUMP_IF_TRUE,
        Op.POP_JUMP_IF_NONE,
        Op.POP_JUMP_IF_NOT_NONE,
        Op.FOR_ITER,
        Op.SEND,
    }
)
UNCONDITIONAL_JUMPS = frozenset({Op.JUMP, Op.JUMP_NO_INTERRUPT})
JUMPS = CONDITIONAL_JUMPS | UNCONDITIONAL_JUMPS
EXITS = frozenset({Op.RETURN_VALUE, Op.RAISE_VARARGS, Op.RERAISE})
NO_FALL_THROUGH = EXITS | UNCONDITIONAL_JUMPS
CO_OPTIMIZED, CO_NEWLOCALS, CO_VARARGS, CO_VARKEYWORDS = 0x01, 0x02, 0x04, 0x08
# Generator, coroutine, iterable coroutine, asynchronous generator.
GENERATOR_FLAGS = 0x20 | 0x80 | 0x100 | 0x200


class Label:
    """A place in an instruction list; compared by identity."""

    __slots__ = ()


class Handler(NamedTuple):
    """The exception-table entry of one instruction."""

    target: Label
    depth: int
    lasti: bool


Position = tuple[int | None, int | None, int | None, int | None]
NO_POSITION: Position = (None, None, None, None)


class Call(NamedTuple):
    """Operand of CALL: arguments on the stack, the last of them named."""

    argc: int
    keywords: tuple[str, ...] = ()


class Global(NamedTuple):
    """Operand of LOAD_GLOBAL."""

    name: str
    push_null: bool = False


class SuperAttr(NamedTuple):
    """Operand of LOAD_SUPER_ATTR."""

    name: str
    method: bool
    two_arguments: bool


class Compare(NamedTuple):
    """Operand of COMPARE_OP; some versions can ask for a real bool."""

    operator: str
    as_bool: bool = False


class Format(NamedTuple):
    """Operand of FORMAT_VALUE: conversion 0 none, 1 str, 2 repr, 3 ascii."""

    conversion: int = 0
    has_spec: bool = False


@dataclass(slots=True, eq=False, repr=False)
class Instruction:
    """One neutral instruction. Treated as immutable: lists share instructions.

    ``arg`` is None, a name, a constant, an int, a ``Label`` (jumps) or one of the operand tuples
    below ``Op``; ``position`` is (line, end line, column, end column); ``handler`` is where an
    exception raised here goes.
    """

    op: Op
    arg: Any = None
    position: Position = NO_POSITION
    handler: Handler | None = None
    label: Label | None = None

    def __repr__(self) -> str:
        return f"{self.op.name} {self.arg!r}"


def with_label(item: Instruction, label: Label) -> Instruction:
    """A copy that carries a label."""
    return Instruction(item.op, item.arg, item.position, item.handler, label)


@dataclass(frozen=True, eq=False)
class Code:
    """A code object in neutral form; never changed once made, and compared by identity.

    ``consts`` and ``names`` are the original pools: encoding starts from them, so that unchanged
    code keeps its indices.
    """

    name: str
    qualname: str
    filename: str
    first_line: int
    flags: int
    argcount: int
    posonly_argcount: int
    kwonly_argcount: int
    varnames: tuple[str, ...]
    cellvars: tuple[str, ...]
    freevars: tuple[str, ...]
    instructions: list[Instruction]
    consts: tuple[object, ...] = (None,)
    names: tuple[str, ...] = ()

    @property
    def parameter_count(self) -> int:
        """The number of local variables that the call fills."""
        stars = bool(self.flags & CO_VARARGS) + bool(self.flags & CO_VARKEYWORDS)
        return self.argcount + self.kwonly_argcount + stars

    def position_at(self, k: int) -> Position:
        """The position of instruction ``k`` (negative: from the end), or else of the nearest one
        before it that has a line.
        """
        before = reversed(self.instructions[: k % len(self.instructions) + 1])
        found = next((item.position for item in before if item.position[0] is not None), None)
        return found or (self.first_line, self.first_line, None, None)


def label_positions(instructions: list[Instruction]) -> dict[Label, int]:
    """Index of the instruction that carries each label."""
    return {item.label: k for k, item in enumerate(instructions) if item.label is not None}
