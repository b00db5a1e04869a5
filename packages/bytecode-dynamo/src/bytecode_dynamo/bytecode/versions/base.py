"""The shape of a version table and the rows every supported version shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bytecode_dynamo.bytecode.instruction import Handler, Instruction, Label, Op, Position
from bytecode_dynamo.bytecode.operands import BINARY, CELL, CONST, FORWARD, LOCAL, NAME, NONE, RAW, Operand, Pool


class Row(NamedTuple):
    """One native instruction that is one neutral instruction."""

    native: str
    op: Op
    operand: Operand


class Native:
    """One native instruction, caches and EXTENDED_ARG prefixes left out."""

    __slots__ = ("arg", "handler", "label", "name", "offset", "position", "target")

    def __init__(
        self,
        name: str,
        arg: int = 0,
        target: Label | None = None,
        position: Position = (None, None, None, None),
        handler: Handler | None = None,
        label: Label | None = None,
        offset: int = 0,
    ) -> None:
        self.name = name
        self.arg = arg
        self.target = target
        self.position = position
        self.handler = handler
        self.label = label
        self.offset = offset


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
    # Native instructions that stand, unexecuted, where an exhausted FOR_ITER goes.
    loop_landing: tuple[str, ...]
    # Stack order of a call: NULL below the callable (3.11, 3.12) or above it (3.13).
    null_below_callable: bool
    # Whether a call's keyword names are pushed before it.
    keywords_on_stack: bool
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


SHARED_ROWS = (
    Row("NOP", Op.NOP, NONE),
    Row("POP_TOP", Op.POP_TOP, NONE),
    Row("PUSH_NULL", Op.PUSH_NULL, NONE),
    Row("COPY", Op.COPY, RAW),
    Row("SWAP", Op.SWAP, RAW),
    Row("LOAD_CONST", Op.LOAD_CONST, CONST),
    Row("LOAD_FAST", Op.LOAD_FAST, LOCAL),
    Row("STORE_FAST", Op.STORE_FAST, LOCAL),
    Row("DELETE_FAST", Op.DELETE_FAST, LOCAL),
    Row("MAKE_CELL", Op.MAKE_CELL, CELL),
    Row("COPY_FREE_VARS", Op.COPY_FREE_VARS, RAW),
    Row("LOAD_DEREF", Op.LOAD_DEREF, CELL),
    Row("STORE_DEREF", Op.STORE_DEREF, CELL),
    Row("DELETE_DEREF", Op.DELETE_DEREF, CELL),
    Row("STORE_GLOBAL", Op.STORE_GLOBAL, NAME),
    Row("DELETE_GLOBAL", Op.DELETE_GLOBAL, NAME),
    Row("LOAD_NAME", Op.LOAD_NAME, NAME),
    Row("STORE_NAME", Op.STORE_NAME, NAME),
    Row("DELETE_NAME", Op.DELETE_NAME, NAME),
    Row("STORE_ATTR", Op.STORE_ATTR, NAME),
    Row("DELETE_ATTR", Op.DELETE_ATTR, NAME),
    Row("BINARY_SUBSCR", Op.BINARY_SUBSCR, NONE),
    Row("STORE_SUBSCR", Op.STORE_SUBSCR, NONE),
    Row("DELETE_SUBSCR", Op.DELETE_SUBSCR, NONE),
    Row("UNARY_NEGATIVE", Op.UNARY_NEGATIVE, NONE),
    Row("UNARY_NOT", Op.UNARY_NOT, NONE),
    Row("UNARY_INVERT", Op.UNARY_INVERT, NONE),
    Row("BINARY_OP", Op.BINARY_OP, BINARY),
    Row("IS_OP", Op.IS_OP, RAW),
    Row("CONTAINS_OP", Op.CONTAINS_OP, RAW),
    Row("BUILD_TUPLE", Op.BUILD_TUPLE, RAW),
    Row("BUILD_LIST", Op.BUILD_LIST, RAW),
    Row("BUILD_SET", Op.BUILD_SET, RAW),
    Row("BUILD_MAP", Op.BUILD_MAP, RAW),
    Row("BUILD_CONST_KEY_MAP", Op.BUILD_CONST_KEY_MAP, RAW),
    Row("BUILD_STRING", Op.BUILD_STRING, RAW),
    Row("BUILD_SLICE", Op.BUILD_SLICE, RAW),
    Row("LIST_APPEND", Op.LIST_APPEND, RAW),
    Row("SET_ADD", Op.SET_ADD, RAW),
    Row("MAP_ADD", Op.MAP_ADD, RAW),
    Row("LIST_EXTEND", Op.LIST_EXTEND, RAW),
    Row("SET_UPDATE", Op.SET_UPDATE, RAW),
    Row("DICT_UPDATE", Op.DICT_UPDATE, RAW),
    Row("DICT_MERGE", Op.DICT_MERGE, RAW),
    Row("UNPACK_SEQUENCE", Op.UNPACK_SEQUENCE, RAW),
    Row("UNPACK_EX", Op.UNPACK_EX, RAW),
    Row("GET_LEN", Op.GET_LEN, NONE),
    Row("MATCH_MAPPING", Op.MATCH_MAPPING, NONE),
    Row("MATCH_SEQUENCE", Op.MATCH_SEQUENCE, NONE),
    Row("MATCH_KEYS", Op.MATCH_KEYS, NONE),
    Row("MATCH_CLASS", Op.MATCH_CLASS, RAW),
    Row("CALL_FUNCTION_EX", Op.CALL_FUNCTION_EX, RAW),
    Row("LOAD_BUILD_CLASS", Op.LOAD_BUILD_CLASS, NONE),
    Row("RETURN_VALUE", Op.RETURN_VALUE, NONE),
    Row("GET_ITER", Op.GET_ITER, NONE),
    Row("FOR_ITER", Op.FOR_ITER, FORWARD),
    Row("RAISE_VARARGS", Op.RAISE_VARARGS, RAW),
    Row("RERAISE", Op.RERAISE, RAW),
    Row("PUSH_EXC_INFO", Op.PUSH_EXC_INFO, NONE),
    Row("POP_EXCEPT", Op.POP_EXCEPT, NONE),
    Row("CHECK_EXC_MATCH", Op.CHECK_EXC_MATCH, NONE),
    Row("CHECK_EG_MATCH", Op.CHECK_EG_MATCH, NONE),
    Row("LOAD_ASSERTION_ERROR", Op.LOAD_ASSERTION_ERROR, NONE),
    Row("BEFORE_WITH", Op.BEFORE_WITH, NONE),
    Row("WITH_EXCEPT_START", Op.WITH_EXCEPT_START, NONE),
    Row("IMPORT_NAME", Op.IMPORT_NAME, NAME),
    Row("IMPORT_FROM", Op.IMPORT_FROM, NAME),
    Row("SETUP_ANNOTATIONS", Op.SETUP_ANNOTATIONS, NONE),
    Row("RESUME", Op.RESUME, RAW),
    Row("RETURN_GENERATOR", Op.RETURN_GENERATOR, NONE),
    Row("YIELD_VALUE", Op.YIELD_VALUE, RAW),
    Row("SEND", Op.SEND, FORWARD),
    Row("GET_YIELD_FROM_ITER", Op.GET_YIELD_FROM_ITER, NONE),
    Row("GET_AWAITABLE", Op.GET_AWAITABLE, RAW),
    Row("GET_AITER", Op.GET_AITER, NONE),
    Row("GET_ANEXT", Op.GET_ANEXT, NONE),
    Row("BEFORE_ASYNC_WITH", Op.BEFORE_ASYNC_WITH, NONE),
    Row("END_ASYNC_FOR", Op.END_ASYNC_FOR, NONE),
)
