"""Unary, binary and comparison operators, subscripts, formatting."""

from __future__ import annotations

from bytecode_dynamo.builtins.comparison import compare, is_identical
from bytecode_dynamo.builtins.operators import binary, unary
from bytecode_dynamo.bytecode import Instruction, Op
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.frame import Frame
from bytecode_dynamo.state.protocol import call_known
from bytecode_dynamo.variables.constant import NONE, ConstantVariable, SliceVariable
from bytecode_dynamo.variables.text import joined, text_of

from .jumps import truth_of
from .table import evaluates

_UNARY = {Op.UNARY_POSITIVE: "+", Op.UNARY_NEGATIVE: "-", Op.UNARY_INVERT: "~", Op.UNARY_NOT: "not"}


evaluates(*_UNARY)(
    lambda ctx, frame, instruction: frame.push(
        unary(ctx, _UNARY[instruction.op], frame.stack.pop())
    )
)
evaluates(Op.TO_BOOL)(
    lambda ctx, frame, instruction: frame.push(
        ConstantVariable(truth_of(ctx, frame, frame.stack.pop()))
    )
)
evaluates(Op.BINARY_OP)(
    lambda ctx, frame, instruction: frame.push(binary(ctx, instruction.arg, *frame.pop_many(2)))
)


@evaluates(Op.COMPARE_OP)
def compare_op(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    left, right = frame.pop_many(2)
    result = compare(ctx, instruction.arg.operator, left, right)
    frame.push(
        ConstantVariable(truth_of(ctx, frame, result)) if instruction.arg.as_bool else result
    )


@evaluates(Op.IS_OP)
def is_op(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    left, right = frame.pop_many(2)
    frame.push(ConstantVariable(is_identical(ctx, left, right) != bool(instruction.arg)))


@evaluates(Op.CONTAINS_OP)
def contains_op(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    item, container = frame.pop_many(2)
    frame.push(ConstantVariable(container.contains(ctx, item) != bool(instruction.arg)))


@evaluates(Op.BINARY_SUBSCR)
def binary_subscr(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    container, key = frame.pop_many(2)
    frame.push(container.get_item(ctx, key))


@evaluates(Op.STORE_SUBSCR)
def store_subscr(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    value, container, key = frame.pop_many(3)
    container.set_item(ctx, key, value)


@evaluates(Op.DELETE_SUBSCR)
def delete_subscr(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    container, key = frame.pop_many(2)
    container.del_item(ctx, key)


@evaluates(Op.BINARY_SLICE)
def binary_slice(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    container, start, stop = frame.pop_many(3)
    frame.push(container.get_item(ctx, SliceVariable((start, stop, NONE))))


@evaluates(Op.STORE_SLICE)
def store_slice(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    value, container, start, stop = frame.pop_many(4)
    container.set_item(ctx, SliceVariable((start, stop, NONE)), value)


# -- strings ---------------------------------------------------------------------------------------

_CONVERSIONS = {1: str, 2: repr, 3: ascii}


@evaluates(Op.CONVERT_VALUE)
def convert_value(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    frame.push(call_known(ctx, _CONVERSIONS[instruction.arg], [frame.stack.pop()]))


@evaluates(Op.FORMAT_VALUE)
def format_value(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    conversion, has_spec = instruction.arg
    spec = frame.stack.pop() if has_spec else ConstantVariable("")
    value = frame.stack.pop()
    if conversion:
        value = call_known(ctx, _CONVERSIONS[conversion], [value])
    frame.push(call_known(ctx, format, [value, spec]))


@evaluates(Op.BUILD_STRING)
def build_string(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    parts = frame.pop_many(instruction.arg)
    frame.push(text_of(ctx, joined, parts))
