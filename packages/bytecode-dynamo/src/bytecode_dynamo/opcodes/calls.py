"""Calls, function objects, returning."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from bytecode_dynamo.bytecode import Call, Instruction, Op
from bytecode_dynamo.effects import Identity
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.evaluation import FrameExit
from bytecode_dynamo.variables.base import NullVariable, VariableTracker
from bytecode_dynamo.variables.callable import CallableVariable, ClassVariable
from bytecode_dynamo.variables.function import CellVariable, FunctionVariable
from bytecode_dynamo.variables.generator import stopped_inside
from bytecode_dynamo.variables.mapping import DictVariable

from .table import evaluates

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context
    from bytecode_dynamo.frame import Frame

FunctionType = type(lambda: None)


def split_pair(
    first: VariableTracker, second: VariableTracker
) -> tuple[VariableTracker, list[VariableTracker]]:
    """The callable of a pair, and the receiver if the pair is a method and its object."""
    if isinstance(first, NullVariable):
        return second, []
    if isinstance(second, NullVariable):
        return first, []
    return first, [second]


@evaluates(Op.CALL)
def call(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    arg: Call = instruction.arg
    values = frame.pop_many(arg.argc)
    function, receiver = split_pair(*frame.pop_many(2))
    names = arg.keywords
    positional = values[: len(values) - len(names)]
    keywords = dict(zip(names, values[len(positional) :]))
    if isinstance(function, ClassVariable) and function.value is super and not values:
        frame.push(ctx.zero_argument_super(frame))
        return
    frame.push(function.call(ctx, [*receiver, *positional], keywords))


@evaluates(Op.CALL_FUNCTION_EX)
def call_function_ex(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    named = frame.stack.pop() if instruction.arg & 1 else None
    args = frame.stack.pop().unpack(ctx)
    function, receiver = split_pair(*frame.pop_many(2))
    keywords: dict[str, VariableTracker] = {}
    if named is not None:
        for key, value in ctx.pairs_of(named):
            keywords[key.as_constant(ctx)] = ctx.real(value)
    frame.push(function.call(ctx, [*receiver, *args], keywords))


@evaluates(Op.MAKE_FUNCTION)
def make_function(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    flags = instruction.arg
    code = frame.stack.pop().as_constant(ctx)
    closure = tuple(frame.stack.pop().unpack(ctx)) if flags & 8 else ()
    annotations = frame.stack.pop() if flags & 4 else None
    annotate = frame.stack.pop() if flags & 16 else None
    keyword_defaults: tuple[tuple[str, VariableTracker], ...] = ()
    if flags & 2:
        held = frame.stack.pop()
        assert isinstance(held, DictVariable)
        keyword_defaults = tuple(
            (ctx.real(key).as_constant(ctx), value) for key, value in held.entries(ctx).values()
        )
    defaults = tuple(frame.stack.pop().unpack(ctx)) if flags & 1 else ()
    assert all(isinstance(cell, CellVariable) for cell in closure)
    frame.push(
        FunctionVariable(
            code,
            frame.names.mapping,
            code.co_name,
            defaults,
            keyword_defaults,
            closure,
            key=Identity(FunctionType),
            annotations=annotations,
            annotate=annotate,
        )
    )


@evaluates(Op.RETURN_VALUE)
def return_value(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    raise FrameExit(frame.stack.pop())


evaluates(Op.LOAD_ASSERTION_ERROR)(
    lambda ctx, frame, instruction: frame.push(ClassVariable(AssertionError))
)
evaluates(Op.LOAD_BUILD_CLASS)(
    lambda ctx, frame, instruction: frame.push(CallableVariable(builtins.__build_class__))
)


@evaluates(Op.CALL_INTRINSIC_1)
def call_intrinsic(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    if instruction.arg == 3:  # StopIteration inside a generator becomes RuntimeError
        error = frame.stack.pop()
        if error.python_type() is StopIteration:
            error = stopped_inside(ctx, error).value
        frame.push(error)
        return
    raise GraphBreak("BD006", f"intrinsic {instruction.arg}")
