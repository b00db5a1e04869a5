"""CPython 3.11: PRECALL, KW_NAMES, LOAD_METHOD, directional conditional jumps."""

from __future__ import annotations

from bytecode_dynamo.bytecode.instruction import Call, Compare, Format, Global, Instruction, Op
from bytecode_dynamo.bytecode.operands import (
    BACKWARD,
    CELL,
    COMPARISONS,
    FORWARD,
    NAME,
    NONE,
    RAW,
    Operand,
    Pool,
)

from .base import SHARED_ROWS, Folded, Native, Row, Version, jump, rows

GLOBAL = Operand(
    lambda raw, pool: Global(pool.names[raw >> 1], bool(raw & 1)),
    lambda value, pool: pool.name(value.name) << 1 | value.push_null,
)
COMPARE = Operand(
    lambda raw, pool: Compare(COMPARISONS[raw]),
    lambda value, pool: COMPARISONS.index(value.operator),
)
FORMAT = Operand(
    lambda raw, pool: Format(raw & 3, bool(raw & 4)),
    lambda value, pool: value.conversion | value.has_spec << 2,
)

CONDITIONS = ("FALSE", "TRUE", "NONE", "NOT_NONE")
# Rows 3.11 and 3.12 have in common.
ROWS_BEFORE_313 = (
    Row("LOAD_CLOSURE", Op.LOAD_CLOSURE, CELL),
    Row("FORMAT_VALUE", Op.FORMAT_VALUE, FORMAT),
    Row("MAKE_FUNCTION", Op.MAKE_FUNCTION, RAW),
)
ROWS = (
    *SHARED_ROWS,
    *ROWS_BEFORE_313,
    Row("LOAD_GLOBAL", Op.LOAD_GLOBAL, GLOBAL),
    *rows(NAME, "LOAD_ATTR LOAD_METHOD"),
    Row("LOAD_CLASSDEREF", Op.LOAD_CLASSDEREF, CELL),
    *rows(
        NONE, "UNARY_POSITIVE LIST_TO_TUPLE PREP_RERAISE_STAR IMPORT_STAR PRINT_EXPR ASYNC_GEN_WRAP"
    ),
    Row("COMPARE_OP", Op.COMPARE_OP, COMPARE),
    *(
        Row(f"POP_JUMP_{way}_IF_{what}", Op[f"POP_JUMP_IF_{what}"], operand)
        for way, operand in (("FORWARD", FORWARD), ("BACKWARD", BACKWARD))
        for what in CONDITIONS
    ),
)
CACHES = {
    "BINARY_SUBSCR": 4, "STORE_SUBSCR": 1, "UNPACK_SEQUENCE": 1, "STORE_ATTR": 4, "LOAD_ATTR": 4,
    "COMPARE_OP": 2,
    "LOAD_GLOBAL": 5, "BINARY_OP": 1, "LOAD_METHOD": 10, "PRECALL": 1, "CALL": 4,
}  # fmt: skip


def fold_call(natives: list[Native], k: int, pool: Pool) -> Folded:
    """PRECALL and CALL always come together."""
    return [(Op.CALL, Call(natives[k + 1].arg))], 2


def fold_keyword_call(natives: list[Native], k: int, pool: Pool) -> Folded:
    """KW_NAMES sets a register that the following CALL reads."""
    return [(Op.CALL, Call(natives[k + 2].arg, pool.consts[natives[k].arg]))], 3


def expand_call(item: Instruction, pool: Pool) -> list[tuple[str, object]]:
    """Write a call with its register of keyword names."""
    argc, keywords = item.arg
    call: list[tuple[str, object]] = [("PRECALL", argc), ("CALL", argc)]
    return [("KW_NAMES", pool.const(keywords)), *call] if keywords else call


def fold_or_pop(op: Op):
    """JUMP_IF_x_OR_POP is what later versions write with COPY and POP_TOP."""

    def fold(natives: list[Native], k: int, pool: Pool) -> Folded:
        return [(Op.COPY, 1), (op, natives[k].target), (Op.POP_TOP, None)], 1

    return fold


def fuse_or_pop(natives: list[Native], k: int) -> tuple[int, str, object] | None:
    """The inverse of fold_or_pop."""
    if natives[k].arg != 1 or k + 2 >= len(natives):
        return None
    jump_, pop = natives[k + 1], natives[k + 2]
    name = OR_POP.get(jump_.name)
    if name is None or pop.name != "POP_TOP" or natives[k].position != pop.position:
        return None
    return 3, name, jump_.target


OR_POP = {
    "POP_JUMP_FORWARD_IF_FALSE": "JUMP_IF_FALSE_OR_POP",
    "POP_JUMP_FORWARD_IF_TRUE": "JUMP_IF_TRUE_OR_POP",
}


def expand_load_and_clear(item: Instruction, pool: Pool) -> list[tuple[str, object]]:
    """Only later versions have this as one instruction; here the variable must be bound."""
    slot = pool.local(item.arg)
    return [("LOAD_FAST", slot), ("DELETE_FAST", slot)]


PY311 = Version(
    number=(3, 11),
    rows=ROWS,
    caches=CACHES,
    folds={
        "PRECALL": fold_call,
        "KW_NAMES": fold_keyword_call,
        "JUMP_IF_FALSE_OR_POP": fold_or_pop(Op.POP_JUMP_IF_FALSE),
        "JUMP_IF_TRUE_OR_POP": fold_or_pop(Op.POP_JUMP_IF_TRUE),
    },
    expands={
        Op.CALL: expand_call,
        Op.LOAD_FAST_CHECK: lambda item, pool: [("LOAD_FAST", pool.local(item.arg))],
        Op.LOAD_FAST_AND_CLEAR: expand_load_and_clear,
        Op.TO_BOOL: lambda item, pool: [],
        Op.JUMP: jump("JUMP_FORWARD"),
        Op.JUMP_NO_INTERRUPT: jump("JUMP_BACKWARD_NO_INTERRUPT"),
        **{Op[f"POP_JUMP_IF_{what}"]: jump(f"POP_JUMP_FORWARD_IF_{what}") for what in CONDITIONS},
    },
    fuses={"COPY": fuse_or_pop},
    loop_landing=(),
    null_below_callable=True,
    keywords_on_stack=False,
    exit_is_pair=False,
    lasti_is_object=True,
    backward_names={
        f"POP_JUMP_FORWARD_IF_{what}": f"POP_JUMP_BACKWARD_IF_{what}" for what in CONDITIONS
    },
    looks_up_early=frozenset(),
    pseudo_names={},
    send_jump_effect=-1,
)
