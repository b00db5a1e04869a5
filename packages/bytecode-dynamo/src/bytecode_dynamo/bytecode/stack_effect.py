"""What each neutral instruction takes from the stack and leaves on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .instruction import EXITS, JUMPS, NO_FALL_THROUGH, Instruction, Label, Op, label_positions
from .versions import RUNNING

Effect = tuple[int, int]


FIXED: dict[Op, Effect] = {
    Op[name]: effect
    for effect, names in (
        (
            (0, 0),
            "NOP MAKE_CELL COPY_FREE_VARS DELETE_FAST DELETE_DEREF DELETE_GLOBAL DELETE_NAME "
            "SETUP_ANNOTATIONS RESUME "
            "JUMP JUMP_NO_INTERRUPT",
        ),
        (
            (0, 1),
            "PUSH_NULL LOAD_CONST LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_CLOSURE "
            "LOAD_DEREF LOAD_NAME "
            "LOAD_CLASSDEREF LOAD_LOCALS LOAD_BUILD_CLASS LOAD_ASSERTION_ERROR RETURN_GENERATOR",
        ),
        (
            (1, 0),
            "POP_TOP STORE_FAST STORE_DEREF STORE_GLOBAL STORE_NAME DELETE_ATTR RETURN_VALUE "
            "POP_JUMP_IF_FALSE "
            "POP_JUMP_IF_TRUE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_EXCEPT IMPORT_STAR "
            "PRINT_EXPR",
        ),
        (
            (1, 1),
            "LOAD_ATTR UNARY_POSITIVE UNARY_NEGATIVE UNARY_NOT UNARY_INVERT TO_BOOL LIST_TO_TUPLE "
            "CONVERT_VALUE "
            "GET_ITER YIELD_VALUE GET_YIELD_FROM_ITER GET_AWAITABLE GET_AITER ASYNC_GEN_WRAP "
            "CALL_INTRINSIC_1 "
            "LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS",
        ),
        (
            (1, 2),
            "LOAD_METHOD GET_LEN MATCH_MAPPING MATCH_SEQUENCE PUSH_EXC_INFO IMPORT_FROM GET_ANEXT "
            "FOR_ITER",
        ),
        ((2, 0), "STORE_ATTR DELETE_SUBSCR END_ASYNC_FOR"),
        (
            (2, 1),
            "BINARY_SUBSCR BINARY_OP COMPARE_OP IS_OP CONTAINS_OP PREP_RERAISE_STAR "
            "CALL_INTRINSIC_2 IMPORT_NAME END_SEND "
            "BUILD_TEMPLATE",
        ),
        ((2, 2), "CHECK_EXC_MATCH CHECK_EG_MATCH SEND"),
        ((2, 3), "MATCH_KEYS"),
        ((3, 0), "STORE_SUBSCR"),
        ((3, 1), "BINARY_SLICE MATCH_CLASS"),
        ((3, 2), "CLEANUP_THROW"),
        ((4, 0), "STORE_SLICE"),
        ((1, 2 + RUNNING.exit_is_pair), "BEFORE_WITH BEFORE_ASYNC_WITH"),
        ((4 + RUNNING.exit_is_pair, 5 + RUNNING.exit_is_pair), "WITH_EXCEPT_START"),
    )
    for name in names.split()
}
VARIABLE: dict[Op, Callable[[Instruction], Effect]] = {
    Op.COPY: lambda item: (item.arg, item.arg + 1),
    Op.SWAP: lambda item: (item.arg, item.arg),
    Op.LOAD_GLOBAL: lambda item: (0, 1 + item.arg.push_null),
    Op.LOAD_SUPER_ATTR: lambda item: (3, 1 + item.arg.method),
    **dict.fromkeys(
        (Op.BUILD_TUPLE, Op.BUILD_LIST, Op.BUILD_SET, Op.BUILD_STRING, Op.BUILD_SLICE),
        lambda item: (item.arg, 1),
    ),
    Op.BUILD_MAP: lambda item: (2 * item.arg, 1),
    Op.BUILD_CONST_KEY_MAP: lambda item: (item.arg + 1, 1),
    **dict.fromkeys(
        (
            Op.LIST_APPEND,
            Op.SET_ADD,
            Op.LIST_EXTEND,
            Op.SET_UPDATE,
            Op.DICT_UPDATE,
            Op.DICT_MERGE,
            Op.RERAISE,
        ),
        lambda item: (item.arg + 1, item.arg),
    ),
    Op.MAP_ADD: lambda item: (item.arg + 2, item.arg),
    Op.UNPACK_SEQUENCE: lambda item: (1, item.arg),
    Op.UNPACK_EX: lambda item: (1, (item.arg & 255) + 1 + (item.arg >> 8)),
    Op.FORMAT_VALUE: lambda item: (1 + item.arg.has_spec, 1),
    Op.BUILD_INTERPOLATION: lambda item: (2 + (item.arg & 1), 1),
    Op.CALL: lambda item: (item.arg.argc + 2, 1),
    Op.CALL_FUNCTION_EX: lambda item: (3 + (item.arg & 1), 1),
    Op.MAKE_FUNCTION: lambda item: (1 + item.arg.bit_count(), 1),
    Op.RAISE_VARARGS: lambda item: (item.arg, 0),
}


def effect(item: Instruction) -> Effect:
    """Entries popped and pushed when the instruction falls through."""
    fixed = FIXED.get(item.op)
    return fixed if fixed is not None else VARIABLE[item.op](item)


def depth_after_jump(item: Instruction, depth: int) -> int:
    """Stack depth at the target of a jump, given the depth before it."""
    if item.op is Op.FOR_ITER:
        return depth - 1
    if item.op is Op.SEND:
        return depth + RUNNING.send_jump_effect
    popped, pushed = effect(item)
    return depth - popped + pushed


def successors(instructions: list[Instruction], places: dict[Label, int], k: int) -> Iterator[int]:
    """Indices an instruction can go to without raising."""
    item = instructions[k]
    if item.op in JUMPS:
        yield places[item.arg]
    if item.op not in NO_FALL_THROUGH:
        yield k + 1


def stack_size(instructions: list[Instruction]) -> int:
    """Greatest stack depth over every path, handlers included."""
    places = label_positions(instructions)
    depth_at: list[int | None] = [None] * len(instructions)
    pending = [(0, 0)]
    largest = 1
    while pending:
        k, depth = pending.pop()
        while depth_at[k] is None:
            depth_at[k] = depth
            item = instructions[k]
            op = item.op
            handler = item.handler
            if handler is not None:
                target = places[handler.target]
                if depth_at[target] is None:
                    pending.append((target, handler.depth + handler.lasti + 1))
            if op in JUMPS:
                target = places[item.arg]
                if depth_at[target] is None:
                    pending.append((target, depth_after_jump(item, depth)))
            popped, pushed = effect(item)
            if popped > depth:
                raise ValueError(f"stack underflow at {k}: {item!r}")
            after = depth - popped + pushed
            largest = max(largest, depth, after)
            if RUNNING.keywords_on_stack and (
                op is Op.CALL_FUNCTION_EX or (op is Op.CALL and item.arg.keywords)
            ):
                largest = max(largest, depth + 1)
            if op in EXITS or op in (Op.JUMP, Op.JUMP_NO_INTERRUPT):
                break
            depth = after
            k += 1
    return largest
