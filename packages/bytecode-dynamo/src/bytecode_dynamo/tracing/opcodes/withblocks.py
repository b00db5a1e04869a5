"""``with`` blocks."""

from __future__ import annotations

from bytecode_dynamo.bytecode import EXIT_IS_PAIR, Instruction, Op
from bytecode_dynamo.class_flags import type_name
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.frame import Frame
from bytecode_dynamo.state.protocol import get_attribute, raise_error
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.attribute import find_in_class
from bytecode_dynamo.variables.base import NULL
from bytecode_dynamo.variables.class_object import ClassVariable
from bytecode_dynamo.variables.exception import TRACEBACK, ExceptionVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable

from .calls import split_pair
from .table import evaluates


def special_method(ctx: Context, owner: VariableTracker, name: str) -> VariableTracker:
    """A method that is looked up on the class."""
    found = owner.special(ctx, name) if isinstance(owner, UserObjectVariable) else None
    if found is None and find_in_class(owner.python_type(), name)[0] >= 0:
        found = get_attribute(ctx, owner, name)
    if found is None:
        which = " (missed __exit__ method)" if name == "__exit__" else ""
        message = (
            f"{type_name(owner.python_type())!r} object does not support the context manager "
            f"protocol{which}"
        )
        raise_error(ctx, TypeError, message)
    return found


def enter(ctx: Context, manager: VariableTracker) -> VariableTracker:
    """``manager.__enter__()``; the break names a torch manager that a graph can't enter."""
    try:
        return special_method(ctx, manager, "__enter__").call(ctx, [], {})
    except GraphBreak as error:
        cls = manager.python_type()
        if error.id != "BD018" or not cls.__module__.startswith("torch"):
            raise
        raise GraphBreak("BD017", f"{cls.__module__}.{cls.__qualname__}: {error.reason}") from None


@evaluates(Op.BEFORE_WITH)
def before_with(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    manager = frame.stack.pop()
    if EXIT_IS_PAIR:
        exit_ = [special_method(ctx, manager, "__exit__"), NULL]
    else:
        special_method(ctx, manager, "__enter__")
        exit_ = [special_method(ctx, manager, "__exit__")]
    frame.stack += [*exit_, enter(ctx, manager)]


@evaluates(Op.WITH_EXCEPT_START)
def with_except_start(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    # The stack holds exit (one entry or two), lasti, previous exception, exception.
    error = frame.stack[-1]
    if not isinstance(error, ExceptionVariable):
        raise GraphBreak("BD006", "leaving a with block by an exception from outside of the graph")
    exit_, receiver = split_pair(*frame.stack[-5:-3]) if EXIT_IS_PAIR else (frame.stack[-4], [])
    frame.push(
        exit_.call(ctx, [*receiver, ClassVariable(error.python_type()), error, TRACEBACK], {})
    )
