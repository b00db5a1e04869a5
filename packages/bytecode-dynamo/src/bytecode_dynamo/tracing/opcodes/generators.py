"""Generators, inlined where they are consumed."""

from __future__ import annotations

from bytecode_dynamo.bytecode import Instruction, Op
from bytecode_dynamo.errors import ObservedException
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.frame import Frame, FrameExit, finish_send
from bytecode_dynamo.state.protocol import get_attribute
from bytecode_dynamo.variables.constant import NONE
from bytecode_dynamo.variables.generator import GeneratorVariable

from .table import evaluates


@evaluates(Op.RETURN_GENERATOR)
def return_generator(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    # The caller created the generator object; its first run leaves a value for POP_TOP.
    frame.push(NONE)


@evaluates(Op.YIELD_VALUE)
def yield_value(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    raise FrameExit(frame.stack.pop(), yielded=True)


evaluates(Op.GET_YIELD_FROM_ITER)(
    lambda ctx, frame, instruction: frame.push(frame.stack.pop().iterate(ctx))
)


@evaluates(Op.SEND)
def send(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    iterator = frame.stack[-1]
    if isinstance(iterator, GeneratorVariable):
        item = iterator.send(ctx, value)
    elif value.is_none:
        item = iterator.next(ctx)
    else:
        item = iterator.call_method(ctx, "send", [value], {})
    if item is not None:
        frame.push(item)
        return
    result = iterator.result(ctx) if isinstance(iterator, GeneratorVariable) else NONE
    finish_send(frame, result)
    frame.jump(instruction.arg)


@evaluates(Op.END_SEND)
def end_send(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    frame.stack.pop()
    frame.push(value)


@evaluates(Op.CLEANUP_THROW)
def cleanup_throw(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    error = frame.stack[-1]
    if not issubclass(error.python_type(), StopIteration):
        raise ObservedException(error)
    frame.pop_many(3)
    frame.stack += [NONE, get_attribute(ctx, error, "value")]
