"""The shape of a version table and the rows every supported version shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bytecode_dynamo.bytecode.instruction import (
    NO_POSITION,
    Handler,
    Instruction,
    Label,
    Op,
    Position,
)
from bytecode_dynamo.bytecode.operands import (
    BACKWARD,
    BINARY,
    CELL,
    CONST,
    FORWARD,
    LOCAL,
    NAME,
    NONE,
    RAW,
    Operand,
    Pool,
)


class Row(NamedTuple):
    """One native instruction that is one neutral instruction."""

    native: str
    op: Op
    operand: Operand


@dataclass(slots=True, eq=False)
class Native:
    """One native instruction, caches and EXTENDED_ARG prefixes left out."""

    name: str
    arg: int = 0
    target: Label | None = None
    position: Position = NO_POSITION
    handler: Handler | None = None
    label: Label | None = None
    offset: int = 0


# Reads natives from index k: the (op, operand) pairs they stand for and how many were read;
# None when the rule does not apply there.
Folded = tuple[list[tuple[Op, Any]], int]
Fold = Callable[[list[Native], int, Pool], Folded | None]
# Writes one neutral instruction as (native name, operand) pairs; a Label operand is a jump.
Expand = Callable[[Instruction, Pool], list[tuple[str, Any]]]
# Joins two or three adjacent natives: how many were read and the (name, operand) replacing them.
Fuse = Callable[[list[Native], int], tuple[int, str, Any] | None]


@dataclass(frozen=True)
class Version:
    """Everything that is particular to one interpreter version."""

    number: tuple[int, int]
    rows: tuple[Row, ...]
    caches: Mapping[str, int]
    folds: Mapping[str, Fold]
    expands: Mapping[Op, Expand]
    fuses: Mapping[str, Fuse]
    # Native instructions at the target of an exhausted FOR_ITER, which are not executed.
    loop_landing: tuple[str, ...]
    # Stack order of a call: NULL below the callable (3.11, 3.12) or above it (3.13).
    null_below_callable: bool
    # Whether a call's keyword names are pushed before it.
    keywords_on_stack: bool
    # Whether a ``with`` block keeps its exit method on the stack as a method and its object (or
    # NULL), else bound.
    exit_is_pair: bool
    # Whether the offset of a raise, which some handlers find below the exception, can be kept in a
    # variable.
    lasti_is_object: bool
    # Names of the conditional jump when it goes backward; absent: not encodable.
    backward_names: Mapping[str, str]
    # Instructions that can run a Python function in a frame of its own and whose exception
    # handler the interpreter then looks up one code unit too early.
    looks_up_early: frozenset[str]
    # Names used while joining neighbours, and what they are written as.
    pseudo_names: Mapping[str, str]
    # Values left on the stack by SEND when it jumps, relative to falling through.
    send_jump_effect: int


def jump(native: str) -> Expand:
    """A neutral jump that is one native jump, whose operand is a label."""
    return lambda item, pool: [(native, item.arg)]


def rows(operand: Operand, names: str) -> tuple[Row, ...]:
    """Native instructions that are neutral ones of the same name."""
    return tuple(Row(name, Op[name], operand) for name in names.split())


SHARED_ROWS = (
    *rows(
        NONE,
        "NOP POP_TOP PUSH_NULL BINARY_SUBSCR STORE_SUBSCR DELETE_SUBSCR UNARY_NEGATIVE UNARY_NOT "
        "UNARY_INVERT GET_LEN "
        "MATCH_MAPPING MATCH_SEQUENCE MATCH_KEYS LOAD_BUILD_CLASS RETURN_VALUE GET_ITER "
        "PUSH_EXC_INFO POP_EXCEPT "
        "CHECK_EXC_MATCH CHECK_EG_MATCH LOAD_ASSERTION_ERROR BEFORE_WITH WITH_EXCEPT_START "
        "SETUP_ANNOTATIONS "
        "RETURN_GENERATOR GET_YIELD_FROM_ITER GET_AITER GET_ANEXT BEFORE_ASYNC_WITH END_ASYNC_FOR",
    ),
    *rows(
        RAW,
        "COPY SWAP COPY_FREE_VARS IS_OP CONTAINS_OP BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP "
        "BUILD_CONST_KEY_MAP "
        "BUILD_STRING BUILD_SLICE LIST_APPEND SET_ADD MAP_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE "
        "DICT_MERGE "
        "UNPACK_SEQUENCE UNPACK_EX MATCH_CLASS CALL_FUNCTION_EX RAISE_VARARGS RERAISE RESUME "
        "YIELD_VALUE GET_AWAITABLE",
    ),
    Row("LOAD_CONST", Op.LOAD_CONST, CONST),
    *rows(LOCAL, "LOAD_FAST STORE_FAST DELETE_FAST"),
    *rows(CELL, "MAKE_CELL LOAD_DEREF STORE_DEREF DELETE_DEREF"),
    *rows(
        NAME,
        "STORE_GLOBAL DELETE_GLOBAL LOAD_NAME STORE_NAME DELETE_NAME STORE_ATTR DELETE_ATTR "
        "IMPORT_NAME IMPORT_FROM",
    ),
    Row("BINARY_OP", Op.BINARY_OP, BINARY),
    *rows(FORWARD, "FOR_ITER SEND"),
    Row("JUMP_FORWARD", Op.JUMP, FORWARD),
    Row("JUMP_BACKWARD", Op.JUMP, BACKWARD),
    Row("JUMP_BACKWARD_NO_INTERRUPT", Op.JUMP_NO_INTERRUPT, BACKWARD),
)
