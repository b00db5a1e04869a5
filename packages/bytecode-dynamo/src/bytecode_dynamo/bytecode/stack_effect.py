"""What each neutral instruction takes from the stack and leaves on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .instruction import EXITS, JUMPS, NO_FALL_THROUGH, Instruction, Label, Op, label_positions
from .versions import RUNNING

Effect = tuple[int, int]


def _call(item: Instruction) -> Effect:
    return item.arg.argc + 2, 1


def _make_function(item: Instruction) -> Effect:
    return 1 + item.arg.bit_count(), 1


FIXED: dict[Op, Effect] = {
    **dict.fromkeys(
        (
            Op.NOP, Op.MAKE_CELL, Op.COPY_FREE_VARS, Op.DELETE_FAST, Op.DELETE_DEREF,
            Op.DELETE_GLOBAL, Op.DELETE_NAME, Op.SETUP_ANNOTATIONS, Op.RESUME,
            Op.JUMP, Op.JUMP_NO_INTERRUPT,
        ),
        (0, 0),
    ),
    **dict.fromkeys(
        (
            Op.PUSH_NULL, Op.LOAD_CONST, Op.LOAD_FAST, Op.LOAD_FAST_CHECK,
            Op.LOAD_FAST_AND_CLEAR, Op.LOAD_CLOSURE, Op.LOAD_DEREF, Op.LOAD_NAME,
            Op.LOAD_CLASSDEREF, Op.LOAD_LOCALS, Op.LOAD_BUILD_CLASS,
            Op.LOAD_ASSERTION_ERROR, Op.RETURN_GENERATOR,
        ),
        (0, 1),
    ),
    **dict.fromkeys(
        (
            Op.POP_TOP, Op.STORE_FAST, Op.STORE_DEREF, Op.STORE_GLOBAL, Op.STORE_NAME,
            Op.DELETE_ATTR, Op.RETURN_VALUE, Op.POP_JUMP_IF_FALSE, Op.POP_JUMP_IF_TRUE,
            Op.POP_JUMP_IF_NONE, Op.POP_JUMP_IF_NOT_NONE, Op.POP_EXCEPT, Op.IMPORT_STAR,
            Op.PRINT_EXPR,
        ),
        (1, 0),
    ),
    **dict.fromkeys(
        (
            Op.LOAD_ATTR, Op.UNARY_POSITIVE, Op.UNARY_NEGATIVE, Op.UNARY_NOT, Op.UNARY_INVERT,
            Op.TO_BOOL, Op.LIST_TO_TUPLE, Op.CONVERT_VALUE, Op.GET_ITER, Op.YIELD_VALUE,
            Op.GET_YIELD_FROM_ITER, Op.GET_AWAITABLE, Op.GET_AITER, Op.ASYNC_GEN_WRAP,
            Op.CALL_INTRINSIC_1, Op.LOAD_FROM_DICT_OR_DEREF, Op.LOAD_FROM_DICT_OR_GLOBALS,
        ),
        (1, 1),
    ),
    **dict.fromkeys(
        (
            Op.LOAD_METHOD, Op.GET_LEN, Op.MATCH_MAPPING, Op.MATCH_SEQUENCE, Op.PUSH_EXC_INFO,
            Op.BEFORE_WITH, Op.IMPORT_FROM, Op.GET_ANEXT, Op.BEFORE_ASYNC_WITH, Op.FOR_ITER,
        ),
        (1, 2),
    ),
    **dict.fromkeys((Op.STORE_ATTR, Op.DELETE_SUBSCR, Op.END_ASYNC_FOR), (2, 0)),
    **dict.fromkeys(
        (
            Op.BINARY_SUBSCR, Op.BINARY_OP, Op.COMPARE_OP, Op.IS_OP, Op.CONTAINS_OP,
            Op.PREP_RERAISE_STAR, Op.CALL_INTRINSIC_2, Op.IMPORT_NAME, Op.END_SEND,
        ),
        (2, 1),
    ),
    **dict.fromkeys((Op.CHECK_EXC_MATCH, Op.CHECK_EG_MATCH, Op.SEND), (2, 2)),
    Op.MATCH_KEYS: (2, 3),
    Op.STORE_SUBSCR: (3, 0),
    Op.BINARY_SLICE: (3, 1),
    Op.MATCH_CLASS: (3, 1),
    Op.CLEANUP_THROW: (3, 2),
    Op.STORE_SLICE: (4, 0),
    Op.WITH_EXCEPT_START: (4, 5),
}  # fmt: skip
VARIABLE: dict[Op, Callable[[Instruction], Effect]] = {
    Op.COPY: lambda item: (item.arg, item.arg + 1),
    Op.SWAP: lambda item: (item.arg, item.arg),
    Op.LOAD_GLOBAL: lambda item: (0, 1 + item.arg.push_null),
    Op.LOAD_SUPER_ATTR: lambda item: (3, 1 + item.arg.method),
    Op.BUILD_TUPLE: lambda item: (item.arg, 1),
    Op.BUILD_LIST: lambda item: (item.arg, 1),
    Op.BUILD_SET: lambda item: (item.arg, 1),
    Op.BUILD_STRING: lambda item: (item.arg, 1),
    Op.BUILD_SLICE: lambda item: (item.arg, 1),
    Op.BUILD_MAP: lambda item: (2 * item.arg, 1),
    Op.BUILD_CONST_KEY_MAP: lambda item: (item.arg + 1, 1),
    Op.LIST_APPEND: lambda item: (item.arg + 1, item.arg),
    Op.SET_ADD: lambda item: (item.arg + 1, item.arg),
    Op.MAP_ADD: lambda item: (item.arg + 2, item.arg),
    Op.LIST_EXTEND: lambda item: (item.arg + 1, item.arg),
    Op.SET_UPDATE: lambda item: (item.arg + 1, item.arg),
    Op.DICT_UPDATE: lambda item: (item.arg + 1, item.arg),
    Op.DICT_MERGE: lambda item: (item.arg + 1, item.arg),
    Op.UNPACK_SEQUENCE: lambda item: (1, item.arg),
    Op.UNPACK_EX: lambda item: (1, (item.arg & 255) + 1 + (item.arg >> 8)),
    Op.FORMAT_VALUE: lambda item: (1 + item.arg.has_spec, 1),
    Op.CALL: _call,
    Op.CALL_FUNCTION_EX: lambda item: (3 + (item.arg & 1), 1),
    Op.MAKE_FUNCTION: _make_function,
    Op.RAISE_VARARGS: lambda item: (item.arg, 0),
    Op.RERAISE: lambda item: (item.arg + 1, item.arg),
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
            if op is Op.CALL and item.arg.keywords and RUNNING.keywords_on_stack:
                largest = max(largest, depth + 1)
            if op in EXITS or op in (Op.JUMP, Op.JUMP_NO_INTERRUPT):
                break
            depth = after
            k += 1
    return largest
