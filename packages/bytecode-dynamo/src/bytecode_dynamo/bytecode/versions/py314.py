"""CPython 3.14: BINARY_OP subscripts, small integers, borrowing loads, ``with`` in steps, deferred
annotations, templates.
"""

from __future__ import annotations

from bytecode_dynamo.bytecode.instruction import Instruction, Op
from bytecode_dynamo.bytecode.operands import RAW, Pool

from .base import Expand, Fold, Folded, Native, Version, rows
from .py313 import FRAME_PUSHERS, PY313, expand_make_function, fold_load, fold_load_load
from .py313 import ROWS as ROWS_OF_313

REMOVED = frozenset(
    {
        *(
            "BINARY_SUBSCR",
            "BUILD_CONST_KEY_MAP",
            "LOAD_ASSERTION_ERROR",
            "BEFORE_WITH",
            "BEFORE_ASYNC_WITH",
        ),
        *("CALL_FUNCTION_EX", "END_ASYNC_FOR"),
    }
)
ROWS = (
    *(row for row in ROWS_OF_313 if row.native not in REMOVED),
    *rows(RAW, "BUILD_TEMPLATE BUILD_INTERPOLATION END_ASYNC_FOR"),
)
CACHES = {name: count for name, count in PY313.caches.items() if name not in REMOVED} | {
    "BINARY_OP": 5,
    "CALL_KW": 3,
}
SUBSCRIPT = 26  # the operator of BINARY_OP
COMMON_CONSTANTS = (AssertionError, NotImplementedError, tuple, all, any)
COMMON_INDEX = {id(value): index for index, value in enumerate(COMMON_CONSTANTS)}
# Operands of LOAD_SPECIAL.
ENTER, EXIT, ASYNC_ENTER, ASYNC_EXIT = range(4)


def fold_subscript(natives: list[Native], k: int, pool: Pool) -> Folded | None:
    """Subscripts are a binary operator."""
    return ([(Op.BINARY_SUBSCR, None)], 1) if natives[k].arg == SUBSCRIPT else None


def with_steps(exit_: int, enter: int) -> list[tuple[str, int]]:
    """The start of a ``with`` block: pushes the exit method as a pair, then the enter method's
    result.
    """
    return [
        ("COPY", 1),
        ("LOAD_SPECIAL", exit_),
        ("SWAP", 2),
        ("SWAP", 3),
        ("LOAD_SPECIAL", enter),
        ("CALL", 0),
    ]


WITH = {
    Op.BEFORE_WITH: with_steps(EXIT, ENTER),
    Op.BEFORE_ASYNC_WITH: with_steps(ASYNC_EXIT, ASYNC_ENTER),
}


def fold_with(natives: list[Native], k: int, pool: Pool) -> Folded | None:
    """The steps of a ``with`` statement are one operation."""
    for op, steps in WITH.items():
        if [(item.name, item.arg) for item in natives[k : k + len(steps)]] == steps:
            return [(op, None)], len(steps)
    return None


def fold_unpacking_call(natives: list[Native], k: int, pool: Pool) -> Folded | None:
    """Without keywords, NULL is pushed instead."""
    if k + 1 < len(natives) and natives[k + 1].name == "CALL_FUNCTION_EX":
        return [(Op.CALL_FUNCTION_EX, 0)], 2
    return None


def expand_unpacking_call(item: Instruction, pool: Pool) -> list[tuple[str, object]]:
    """The inverse of fold_unpacking_call."""
    return [*([] if item.arg & 1 else [("PUSH_NULL", 0)]), ("CALL_FUNCTION_EX", 0)]


def expand_constant(item: Instruction, pool: Pool) -> list[tuple[str, object]]:
    """Small integers and some built-ins need no constant."""
    value = item.arg
    if type(value) is int and 0 <= value < 256:
        return [("LOAD_SMALL_INT", value)]
    common = COMMON_INDEX.get(id(value))
    if common is None:
        return [("LOAD_CONST", pool.const(value))]
    return [("LOAD_COMMON_CONSTANT", common)]


def becomes(op: Op, arg: object = None) -> Fold:
    """The rule for an operation that is one native instruction."""
    return lambda natives, k, pool: ([(op, arg)], 1)


def expand_with(op: Op) -> Expand:
    """The inverse of fold_with."""
    return lambda item, pool: list(WITH[op])


PY314 = Version(
    number=(3, 14),
    rows=ROWS,
    caches=CACHES,
    folds={
        **{name: fold for name, fold in PY313.folds.items() if name != "RETURN_CONST"},
        "LOAD_FAST_BORROW": fold_load,
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW": fold_load_load,
        "LOAD_SMALL_INT": lambda natives, k, pool: ([(Op.LOAD_CONST, natives[k].arg)], 1),
        "LOAD_COMMON_CONSTANT": lambda natives, k, pool: (
            [(Op.LOAD_CONST, COMMON_CONSTANTS[natives[k].arg])],
            1,
        ),
        "BINARY_OP": fold_subscript,
        "COPY": fold_with,
        "PUSH_NULL": fold_unpacking_call,
        "CALL_FUNCTION_EX": becomes(Op.CALL_FUNCTION_EX, 1),
        "POP_ITER": becomes(Op.POP_TOP),
        "NOT_TAKEN": lambda natives, k, pool: ([], 1),
    },
    expands={
        **PY313.expands,
        Op.BINARY_SUBSCR: lambda item, pool: [("BINARY_OP", SUBSCRIPT)],
        Op.LOAD_CONST: expand_constant,
        Op.CALL_FUNCTION_EX: expand_unpacking_call,
        Op.MAKE_FUNCTION: expand_make_function,
        **{op: expand_with(op) for op in WITH},
    },
    fuses={name: fuse for name, fuse in PY313.fuses.items() if name != "LOAD_CONST"},
    loop_landing=("END_FOR", "POP_ITER"),
    null_below_callable=False,
    keywords_on_stack=True,
    exit_is_pair=True,
    lasti_is_object=False,
    backward_names={},
    looks_up_early=FRAME_PUSHERS | {"BINARY_OP"},
    pseudo_names=PY313.pseudo_names,
    send_jump_effect=0,
)
