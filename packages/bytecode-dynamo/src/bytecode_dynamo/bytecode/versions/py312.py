"""CPython 3.12: no PRECALL, method bit in LOAD_ATTR, END_FOR, intrinsics, RETURN_CONST."""

from __future__ import annotations

from collections.abc import Mapping

from bytecode_dynamo.bytecode.instruction import Call, Compare, Instruction, Op, SuperAttr
from bytecode_dynamo.bytecode.operands import (
    CELL,
    COMPARISONS,
    FORWARD,
    LOCAL,
    NAME,
    NONE,
    RAW,
    Operand,
    Pool,
)

from .base import SHARED_ROWS, Expand, Fold, Folded, Native, Row, Version, jump, rows
from .py311 import GLOBAL, PY311, ROWS_BEFORE_313

# Low bits of COMPARE_OP: which of unordered, less, greater, equal make it true.
COMPARE_MASKS = {"<": 2, "<=": 10, "==": 8, "!=": 7, ">": 4, ">=": 12}
COMPARE = Operand(
    lambda raw, pool: Compare(COMPARISONS[raw >> 4]),
    lambda value, pool: COMPARISONS.index(value.operator) << 4 | COMPARE_MASKS[value.operator],
)
SUPER_ATTR = Operand(
    lambda raw, pool: SuperAttr(pool.names[raw >> 2], bool(raw & 1), bool(raw & 2)),
    lambda value, pool: pool.name(value.name) << 2 | value.two_arguments << 1 | value.method,
)
UNARY_INTRINSICS = {4: Op.ASYNC_GEN_WRAP, 5: Op.UNARY_POSITIVE, 6: Op.LIST_TO_TUPLE}
BINARY_INTRINSICS = {1: Op.PREP_RERAISE_STAR}

# Rows 3.12 and 3.13 have in common.
ROWS_SINCE_312 = (
    *SHARED_ROWS,
    *rows(LOCAL, "LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR"),
    Row("LOAD_GLOBAL", Op.LOAD_GLOBAL, GLOBAL),
    Row("LOAD_SUPER_ATTR", Op.LOAD_SUPER_ATTR, SUPER_ATTR),
    *rows(NONE, "LOAD_LOCALS BINARY_SLICE STORE_SLICE END_SEND CLEANUP_THROW"),
    Row("LOAD_FROM_DICT_OR_DEREF", Op.LOAD_FROM_DICT_OR_DEREF, CELL),
    Row("LOAD_FROM_DICT_OR_GLOBALS", Op.LOAD_FROM_DICT_OR_GLOBALS, NAME),
    *rows(RAW, "CALL_INTRINSIC_1 CALL_INTRINSIC_2"),
    *rows(FORWARD, "POP_JUMP_IF_FALSE POP_JUMP_IF_TRUE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE"),
)
ROWS = (*ROWS_SINCE_312, *ROWS_BEFORE_313, Row("COMPARE_OP", Op.COMPARE_OP, COMPARE))
CACHES = {
    "BINARY_SUBSCR": 1, "STORE_SUBSCR": 1, "UNPACK_SEQUENCE": 1, "FOR_ITER": 1, "STORE_ATTR": 4,
    "LOAD_ATTR": 9,
    "COMPARE_OP": 1, "LOAD_GLOBAL": 4, "BINARY_OP": 1, "SEND": 1, "LOAD_SUPER_ATTR": 1, "CALL": 3,
}  # fmt: skip


def fold_attribute(natives: list[Native], k: int, pool: Pool) -> Folded:
    """The low bit asks for the pair of stack entries of a method call."""
    raw = natives[k].arg
    return [(Op.LOAD_METHOD if raw & 1 else Op.LOAD_ATTR, pool.names[raw >> 1])], 1


def fold_intrinsic(ops: Mapping[int, Op]) -> Fold:
    """Intrinsics that 3.11 has as instructions of their own."""

    def fold(natives: list[Native], k: int, pool: Pool) -> Folded | None:
        op = ops.get(natives[k].arg)
        return None if op is None else ([(op, None)], 1)

    return fold


def fold_call(natives: list[Native], k: int, pool: Pool) -> Folded:
    """A call without keywords."""
    return [(Op.CALL, Call(natives[k].arg))], 1


def fold_keyword_call(natives: list[Native], k: int, pool: Pool) -> Folded:
    """KW_NAMES sets a register that the following CALL reads."""
    return [(Op.CALL, Call(natives[k + 1].arg, pool.consts[natives[k].arg]))], 2


def expand_call(item: Instruction, pool: Pool) -> list[tuple[str, object]]:
    """Write a call with its register of keyword names."""
    argc, keywords = item.arg
    prefix: list[tuple[str, object]] = [("KW_NAMES", pool.const(keywords))] if keywords else []
    return [*prefix, ("CALL", argc)]


def fold_return_const(natives: list[Native], k: int, pool: Pool) -> Folded:
    """RETURN_CONST is LOAD_CONST and RETURN_VALUE."""
    return [(Op.LOAD_CONST, pool.consts[natives[k].arg]), (Op.RETURN_VALUE, None)], 1


def fuse_return_const(natives: list[Native], k: int) -> tuple[int, str, object] | None:
    """The inverse of fold_return_const."""
    if (
        k + 1 == len(natives)
        or natives[k + 1].name != "RETURN_VALUE"
        or natives[k].position != natives[k + 1].position
    ):
        return None
    return 2, "RETURN_CONST", natives[k].arg


FOLDS = {
    "LOAD_ATTR": fold_attribute,
    "RETURN_CONST": fold_return_const,
    "CALL": fold_call,
    "KW_NAMES": fold_keyword_call,
    "CALL_INTRINSIC_1": fold_intrinsic(UNARY_INTRINSICS),
    "CALL_INTRINSIC_2": fold_intrinsic(BINARY_INTRINSICS),
}


def expand_intrinsic(native: str, number: int) -> Expand:
    """An operation that is a numbered intrinsic here."""
    return lambda item, pool: [(native, number)]


EXPANDS = {
    **{op: expand_intrinsic("CALL_INTRINSIC_1", n) for n, op in UNARY_INTRINSICS.items()},
    **{op: expand_intrinsic("CALL_INTRINSIC_2", n) for n, op in BINARY_INTRINSICS.items()},
    Op.CALL: expand_call,
    Op.LOAD_ATTR: lambda item, pool: [("LOAD_ATTR", pool.name(item.arg) << 1)],
    Op.LOAD_METHOD: lambda item, pool: [("LOAD_ATTR", pool.name(item.arg) << 1 | 1)],
    Op.TO_BOOL: PY311.expands[Op.TO_BOOL],
    Op.JUMP: jump("JUMP_FORWARD"),
    Op.JUMP_NO_INTERRUPT: jump("JUMP_BACKWARD_NO_INTERRUPT"),
}

PY312 = Version(
    number=(3, 12),
    rows=ROWS,
    caches=CACHES,
    folds=FOLDS,
    expands=EXPANDS,
    fuses={"LOAD_CONST": fuse_return_const},
    loop_landing=("END_FOR",),
    null_below_callable=True,
    keywords_on_stack=False,
    exit_is_pair=False,
    lasti_is_object=True,
    backward_names={},
    looks_up_early=frozenset(),
    pseudo_names={},
    send_jump_effect=0,
)
