"""Jumps and loops."""

from __future__ import annotations

import torch

from bytecode_dynamo.bytecode import EXITS, JUMPS, Instruction, Op
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.frame import Frame
from bytecode_dynamo.state.protocol import call_torch
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.tensor import TensorVariable

from .table import evaluates

CONDITIONAL = (Op.POP_JUMP_IF_FALSE, Op.POP_JUMP_IF_TRUE)
ASSUME = OpaqueCall(
    lambda value: torch._assert_async(value if torch._is_functional_tensor(value) else value.cpu()),
    "assume",
)
"""A synchronous assertion: a device stops after a failed one of its own."""
MOST_INSTRUCTIONS = 400
"""The message of an exception."""


@evaluates(Op.JUMP, Op.JUMP_NO_INTERRUPT)
def jump(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    frame.jump(instruction.arg)


@evaluates(*CONDITIONAL)
def pop_jump_if(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    holds = truth_for_jump(ctx, frame, frame.stack.pop(), frame.index - 1)
    if holds is (instruction.op is Op.POP_JUMP_IF_TRUE):
        frame.jump(instruction.arg)


def truth_of(ctx: Context, frame: Frame, value: VariableTracker) -> bool:
    """The truth of a value that becomes a bool; the next instruction may be the jump that uses it
    (3.13).
    """
    jumps = frame.decoded.instructions[frame.index].op in CONDITIONAL
    return truth_for_jump(ctx, frame, value, frame.index) if jumps else value.truth(ctx)


def truth_for_jump(ctx: Context, frame: Frame, condition: VariableTracker, jump: int) -> bool:
    """The truth that decides the jump at index ``jump``; asserted in the graph if the other branch
    raises.
    """
    try:
        return condition.truth(ctx)
    except GraphBreak as error:
        expected = _expected(ctx, frame, jump, condition) if error.id == "BD001" else None
        if expected is None:
            raise
        return expected


def _expected(ctx: Context, frame: Frame, jump: int, condition: VariableTracker) -> bool | None:
    """The truth of a tensor if the other one makes the program raise at once.

    The graph asserts it. When that fails, the call runs again in eager mode, which raises the
    program's exception.
    """
    if (
        not isinstance(condition, TensorVariable)
        or condition.fake.numel() != 1
        or not ctx.may_assume()
    ):
        return None
    instruction = frame.decoded.instructions[jump]
    raising = [_raises(frame, index) for index in (frame.decoded.places[instruction.arg], jump + 1)]
    if raising[0] == raising[1]:
        return None
    expected = (instruction.op is Op.POP_JUMP_IF_TRUE) is not raising[0]
    asserted = condition if expected else call_torch(ctx, torch.logical_not, [condition])
    on_host = condition.fake.fake_device.type == "cpu"
    call_torch(ctx, torch._assert_async if on_host else ASSUME, [asserted])
    ctx.assumed = True
    return expected


def _raises(frame: Frame, index: int) -> bool:
    """Whether all paths from here lead to a ``raise``."""
    instructions, places = frame.decoded.instructions, frame.decoded.places
    starts, seen = [index], {index}
    for _ in range(MOST_INSTRUCTIONS):
        if not starts:
            return True
        place = starts.pop()
        instruction = instructions[place]
        if instruction.op is Op.RAISE_VARARGS:
            continue
        if instruction.op in EXITS:
            return False
        following = set() if instruction.op in (Op.JUMP, Op.JUMP_NO_INTERRUPT) else {place + 1}
        following |= {places[instruction.arg]} if instruction.op in JUMPS else set()
        starts += following - seen
        seen |= following
    return False


@evaluates(Op.POP_JUMP_IF_NONE, Op.POP_JUMP_IF_NOT_NONE)
def pop_jump_if_none(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    if frame.stack.pop().is_none == (instruction.op is Op.POP_JUMP_IF_NONE):
        frame.jump(instruction.arg)


evaluates(Op.GET_ITER)(lambda ctx, frame, instruction: frame.push(frame.stack.pop().iterate(ctx)))


@evaluates(Op.FOR_ITER)
def for_iter(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    item = frame.stack[-1].next(ctx)
    if item is None:
        frame.stack.pop()
        frame.jump(instruction.arg)
    else:
        frame.push(item)
