"""CPython 3.13: NULL above the callable, superinstructions, CALL_KW, TO_BOOL, no LOAD_CLOSURE."""

from __future__ import annotations

from bytecode_dynamo.bytecode.instruction import Call, Compare, Format, Instruction, Op
from bytecode_dynamo.bytecode.operands import COMPARISONS, NONE, RAW, Operand, Pool

from .base import Folded, Native, Row, Version
from .py312 import COMPARE_MASKS, EXPANDS, FOLDS, PY312, ROWS_SINCE_312

COMPARE = Operand(
    lambda raw, pool: Compare(COMPARISONS[raw >> 5], bool(raw & 16)),
    lambda value, pool: (
        COMPARISONS.index(value.operator) << 5 | value.as_bool << 4 | COMPARE_MASKS[value.operator]
    ),
)
ROWS = (
    *ROWS_SINCE_312,
    Row("COMPARE_OP", Op.COMPARE_OP, COMPARE),
    Row("TO_BOOL", Op.TO_BOOL, NONE),
    Row("CONVERT_VALUE", Op.CONVERT_VALUE, RAW),
)
CACHES = {
    **PY312.caches, "CONTAINS_OP": 1, "JUMP_BACKWARD": 1, "TO_BOOL": 3,
    "POP_JUMP_IF_TRUE": 1, "POP_JUMP_IF_FALSE": 1, "POP_JUMP_IF_NONE": 1, "POP_JUMP_IF_NOT_NONE": 1,
}  # fmt: skip
FRAME_PUSHERS = frozenset(
    {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "BINARY_SUBSCR", "LOAD_ATTR", "FOR_ITER", "SEND"}
)
# The flags of earlier MAKE_FUNCTION (16: the function that computes annotations, from 3.14 on), in
# the order they are consumed.
FUNCTION_ATTRIBUTES = (8, 4, 16, 2, 1)


def load(slot: int, pool: Pool) -> tuple[Op, str]:
    """LOAD_FAST of a cell variable is what earlier versions call LOAD_CLOSURE."""
    return (Op.LOAD_CLOSURE if slot in pool.cell_slots else Op.LOAD_FAST, pool.slots[slot])


def fold_load(natives: list[Native], k: int, pool: Pool) -> Folded:
    """Tell LOAD_CLOSURE from LOAD_FAST."""
    return [load(natives[k].arg, pool)], 1


def fold_load_load(natives: list[Native], k: int, pool: Pool) -> Folded:
    """Split the superinstruction."""
    raw = natives[k].arg
    return [load(raw >> 4, pool), load(raw & 15, pool)], 1


def fold_store_load(natives: list[Native], k: int, pool: Pool) -> Folded:
    """Split the superinstruction."""
    raw = natives[k].arg
    return [(Op.STORE_FAST, pool.slots[raw >> 4]), load(raw & 15, pool)], 1


def fold_store_store(natives: list[Native], k: int, pool: Pool) -> Folded:
    """Split the superinstruction."""
    raw = natives[k].arg
    return [(Op.STORE_FAST, pool.slots[raw >> 4]), (Op.STORE_FAST, pool.slots[raw & 15])], 1


def fold_keyword_call(natives: list[Native], k: int, pool: Pool) -> Folded | None:
    """CALL_KW pops its keyword names, which a LOAD_CONST has just pushed."""
    if k + 1 < len(natives) and natives[k + 1].name == "CALL_KW":
        return [(Op.CALL, Call(natives[k + 1].arg, pool.consts[natives[k].arg]))], 2
    return None


def expand_call(item: Instruction, pool: Pool) -> list[tuple[str, object]]:
    """Write a call with its keyword names as a constant."""
    argc, keywords = item.arg
    if keywords:
        return [("LOAD_CONST", pool.const(keywords)), ("CALL_KW", argc)]
    return [("CALL", argc)]


def fold_make_function(natives: list[Native], k: int, pool: Pool) -> Folded:
    """Collect the following SET_FUNCTION_ATTRIBUTE into the earlier flags."""
    flags, end = 0, k + 1
    while end < len(natives) and natives[end].name == "SET_FUNCTION_ATTRIBUTE":
        flags |= natives[end].arg
        end += 1
    return [(Op.MAKE_FUNCTION, flags)], end - k


def expand_make_function(item: Instruction, pool: Pool) -> list[tuple[str, object]]:
    """The attribute nearest to the code object, the closure, is consumed first."""
    attributes = [("SET_FUNCTION_ATTRIBUTE", bit) for bit in FUNCTION_ATTRIBUTES if item.arg & bit]
    return [("MAKE_FUNCTION", 0), *attributes]


def expand_format(item: Instruction, pool: Pool) -> list[tuple[str, object]]:
    """Conversion is a separate instruction, before the format specification."""
    conversion, has_spec = item.arg
    if has_spec:
        around = [("SWAP", 2), ("CONVERT_VALUE", conversion), ("SWAP", 2)] if conversion else []
        return [*around, ("FORMAT_WITH_SPEC", 0)]
    return [*([("CONVERT_VALUE", conversion)] if conversion else []), ("FORMAT_SIMPLE", 0)]


def fuse_pair(natives: list[Native], k: int) -> tuple[int, str, object] | None:
    """Join two adjacent accesses to the first sixteen slots."""
    if k + 1 >= len(natives):
        return None
    first, second = natives[k], natives[k + 1]
    name = PAIRS.get((first.name, second.name))
    if name is None or first.position != second.position or first.arg > 15 or second.arg > 15:
        return None
    return 2, name, first.arg << 4 | second.arg


PAIRS = {
    ("LOAD_FAST", "LOAD_FAST"): "LOAD_FAST_LOAD_FAST",
    ("STORE_FAST", "LOAD_FAST"): "STORE_FAST_LOAD_FAST",
    ("STORE_FAST", "STORE_FAST"): "STORE_FAST_STORE_FAST",
}

PY313 = Version(
    number=(3, 13),
    rows=ROWS,
    caches=CACHES,
    folds={
        **{name: fold for name, fold in FOLDS.items() if name != "KW_NAMES"},
        "LOAD_FAST": fold_load,
        "LOAD_FAST_LOAD_FAST": fold_load_load,
        "STORE_FAST_LOAD_FAST": fold_store_load,
        "STORE_FAST_STORE_FAST": fold_store_store,
        "LOAD_CONST": fold_keyword_call,
        "MAKE_FUNCTION": fold_make_function,
        "FORMAT_SIMPLE": lambda natives, k, pool: ([(Op.FORMAT_VALUE, Format())], 1),
        "FORMAT_WITH_SPEC": lambda natives, k, pool: ([(Op.FORMAT_VALUE, Format(0, True))], 1),
    },
    expands={
        **{op: expand for op, expand in EXPANDS.items() if op is not Op.TO_BOOL},
        Op.CALL: expand_call,
        Op.MAKE_FUNCTION: expand_make_function,
        Op.FORMAT_VALUE: expand_format,
        Op.LOAD_CLOSURE: lambda item, pool: [("LOAD_CLOSURE", pool.cell(item.arg))],
    },
    fuses={**PY312.fuses, "LOAD_FAST": fuse_pair, "STORE_FAST": fuse_pair},
    loop_landing=("END_FOR", "POP_TOP"),
    null_below_callable=False,
    keywords_on_stack=True,
    exit_is_pair=False,
    lasti_is_object=True,
    backward_names={},
    looks_up_early=FRAME_PUSHERS,
    pseudo_names={"LOAD_CLOSURE": "LOAD_FAST"},
    send_jump_effect=0,
)
