"""Raising and handling exceptions inside evaluation, as the interpreter does it."""

from __future__ import annotations

from typing import Any, NoReturn

from bytecode_dynamo.bytecode import Instruction, Op
from bytecode_dynamo.errors import GraphBreak, ObservedException
from bytecode_dynamo.polyfills import exception_groups as groups
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.frame import Frame
from bytecode_dynamo.state.protocol import call_polyfill, handled_exception, observed, raise_error
from bytecode_dynamo.state.requirements import require_order
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.class_object import ClassVariable
from bytecode_dynamo.variables.constant import NONE, ConstantVariable
from bytecode_dynamo.variables.exception import ExceptionVariable

from .table import evaluates


@evaluates(Op.RAISE_VARARGS)
def raise_varargs(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    if instruction.arg == 0:
        handled = handled_exception(ctx)
        if handled is None:
            raise GraphBreak("BD008", "the exception being handled is raised again")
        raise ObservedException(handled)
    cause = frame.stack.pop() if instruction.arg == 2 else None
    error = as_exception(ctx, frame.stack.pop(), "exceptions")
    if cause is not None:
        error.set_attr(
            ctx,
            "__cause__",
            cause if cause.is_none else as_exception(ctx, cause, "exception causes"),
        )
        error.set_attr(ctx, "__suppress_context__", ConstantVariable(True))
    raise observed(ctx, error)


def as_exception(ctx: Context, value: VariableTracker, what: str) -> VariableTracker:
    """The exception object of a ``raise`` operand."""
    if isinstance(value, ClassVariable) and issubclass(value.value, BaseException):
        value = value.call(ctx, [], {})
    if not issubclass(value.python_type(), BaseException):
        raise_error(ctx, TypeError, f"{what} must derive from BaseException")
    if not isinstance(value, ExceptionVariable):
        raise GraphBreak("BD007", f"raise of {value.describe()}")
    return value


@evaluates(Op.RERAISE)
def reraise(ctx: Context, frame: Frame, instruction: Instruction) -> NoReturn:
    error = frame.stack.pop()
    if not isinstance(error, ExceptionVariable):
        raise GraphBreak("BD008", "an exception raised outside of the graph")
    raise ObservedException(error)


@evaluates(Op.PUSH_EXC_INFO)
def push_exc_info(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    error = frame.stack.pop()
    if isinstance(error, ExceptionVariable):
        error.key.raised = True
    frame.stack += [frame.handled[-1] if frame.handled else NONE, error]
    frame.handled.append(error)


@evaluates(Op.POP_EXCEPT)
def pop_except(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    if not frame.handled:
        raise GraphBreak("BD006", "the end of a handler that was entered outside of the graph")
    frame.stack.pop()
    frame.handled.pop()


@evaluates(Op.CHECK_EXC_MATCH)
def check_exc_match(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    wanted = frame.stack.pop().as_constant(ctx)
    error = frame.stack[-1]
    if not isinstance(error, ExceptionVariable):
        raise GraphBreak("BD006", "matching an exception that was raised outside of the graph")
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in _each(wanted)):
        raise_error(
            ctx, TypeError, "catching classes that do not inherit from BaseException is not allowed"
        )
    require_order(ctx, error.python_type())
    frame.push(ConstantVariable(issubclass(error.python_type(), wanted)))


def _each(wanted: Any) -> tuple[Any, ...]:
    return wanted if isinstance(wanted, tuple) else (wanted,)


@evaluates(Op.CHECK_EG_MATCH)
def check_group_match(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    error, wanted = frame.pop_many(2)
    rest, match = call_polyfill(ctx, groups.match, [error, wanted]).unpack(ctx)
    frame.stack += [rest, match]
    if not match.is_none:
        frame.handled[-1] = match


@evaluates(Op.PREP_RERAISE_STAR)
def prepare_reraise(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    frame.push(call_polyfill(ctx, groups.raised_again, frame.pop_many(2)))
