"""Calls, function objects, returning."""

from __future__ import annotations

import builtins

from bytecode_dynamo.bytecode import Call, Instruction, Op
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.frame import Frame, FrameExit
from bytecode_dynamo.state.protocol import pairs_of, raise_error
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import NullVariable, realize
from bytecode_dynamo.variables.callable import CallableVariable
from bytecode_dynamo.variables.class_object import ClassVariable, SuperVariable
from bytecode_dynamo.variables.constant import NONE
from bytecode_dynamo.variables.function import CellVariable, FunctionVariable
from bytecode_dynamo.variables.generator import stopped_inside
from bytecode_dynamo.variables.mapping import DictVariable

from .table import evaluates

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
        frame.push(zero_argument_super(ctx, frame))
        return
    frame.callee = function
    frame.push(function.call(ctx, [*receiver, *positional], keywords))
    frame.callee = None


@evaluates(Op.CALL_FUNCTION_EX)
def call_function_ex(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    named = frame.stack.pop() if instruction.arg & 1 else None
    args = frame.stack.pop().unpack(ctx)
    function, receiver = split_pair(*frame.pop_many(2))
    keywords: dict[str, VariableTracker] = {}
    if named is not None:
        for key, value in pairs_of(ctx, named):
            keywords[key.as_constant(ctx)] = realize(ctx, value)
    frame.callee = function
    frame.push(function.call(ctx, [*receiver, *args], keywords))
    frame.callee = None


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
            (realize(ctx, key).as_constant(ctx), value) for key, value in held.entries(ctx).values()
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


def zero_argument_super(ctx: Context, frame: Frame) -> VariableTracker:
    """``super()`` in a method."""
    cell = frame.slots.get("__class__")
    first = frame.slots.get(frame.code.varnames[0]) if frame.code.argcount else None
    cell = realize(ctx, cell) if cell is not None else None
    if not isinstance(cell, CellVariable) or first is None:
        raise_error(ctx, RuntimeError, "super(): no arguments")
    cls = cell.contents(ctx)
    owner = realize(ctx, first)
    if isinstance(owner, CellVariable):
        owner = owner.contents(ctx) or NONE
    assert cls is not None
    return SuperVariable(cls.as_constant(ctx), owner)
