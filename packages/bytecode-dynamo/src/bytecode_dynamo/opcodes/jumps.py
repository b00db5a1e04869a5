"""Jumps and loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bytecode_dynamo.bytecode import Instruction, Op
from bytecode_dynamo.variables.constant import ConstantVariable

from .table import evaluates

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context
    from bytecode_dynamo.frame import Frame


@evaluates(Op.JUMP, Op.JUMP_NO_INTERRUPT)
def jump(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    frame.jump(instruction.arg)


@evaluates(Op.POP_JUMP_IF_FALSE)
def pop_jump_if_false(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    if not frame.stack.pop().truth(ctx):
        frame.jump(instruction.arg)


@evaluates(Op.POP_JUMP_IF_TRUE)
def pop_jump_if_true(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    if frame.stack.pop().truth(ctx):
        frame.jump(instruction.arg)


@evaluates(Op.POP_JUMP_IF_NONE, Op.POP_JUMP_IF_NOT_NONE)
def pop_jump_if_none(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    is_none = isinstance(value, ConstantVariable) and value.value is None
    if is_none == (instruction.op is Op.POP_JUMP_IF_NONE):
        frame.jump(instruction.arg)


@evaluates(Op.GET_ITER)
def get_iter(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.stack.pop().iterate(ctx))


@evaluates(Op.FOR_ITER)
def for_iter(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    item = frame.stack[-1].next(ctx)
    if item is None:
        frame.stack.pop()
        frame.jump(instruction.arg)
    else:
        frame.push(item)
