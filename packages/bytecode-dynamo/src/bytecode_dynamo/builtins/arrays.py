"""NumPy's numbers are constants, and functions of them are called while capturing; arrays stay outside of graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bytecode_dynamo.errors import GraphBreak, NotConstant
from bytecode_dynamo.guards import GuardKind
from bytecode_dynamo.variables.callable import CallableVariable
from bytecode_dynamo.variables.constant import ConstantVariable, is_constant_value
from bytecode_dynamo.variables.wrap import tracker_for

from .construct import CONSTRUCTORS
from .registry import evaluates_call

try:
    import numpy
except ImportError:  # torch works without it
    numpy: Any = None

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context
    from bytecode_dynamo.source import Source
    from bytecode_dynamo.variables.base import VariableTracker

PURE = ("prod", "sum", "mean", "max", "min", "amax", "amin", "clip", "round", "around", "isclose", "allclose", "interp")


def _folded(function: Any) -> Any:
    def rule(ctx: Context, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        try:
            values = [arg.as_constant(ctx) for arg in args]
            result = function(*values, **{name: value.as_constant(ctx) for name, value in kwargs.items()})
        except NotConstant as error:
            raise GraphBreak("BD005", f"numpy.{function.__name__} of {error}") from None
        if not is_constant_value(result):
            raise GraphBreak("BD005", f"numpy.{function.__name__} gives an array")
        return ConstantVariable(result)

    return rule


def wrap_scalar(ctx: Context, value: Any, source: Source) -> VariableTracker:
    cls, text = type(value), repr(value)
    ctx.guards.require(source, GuardKind.CUSTOM, lambda now: type(now) is cls and repr(now) == text)
    return ConstantVariable(value, source=source)


def wrap_ufunc(ctx: Context, value: Any, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.IDENTITY, value)
    return CallableVariable(value, source=source)


def _register() -> None:
    tracker_for(numpy.generic)(wrap_scalar)
    tracker_for(numpy.ufunc, type(numpy.prod))(wrap_ufunc)
    for name in dir(numpy):
        value = getattr(numpy, name)
        if isinstance(value, type) and issubclass(value, numpy.generic):
            CONSTRUCTORS[value] = _folded(value)
    ufuncs = {id(value): value for value in vars(numpy).values() if isinstance(value, numpy.ufunc)}
    for function in (*ufuncs.values(), *(getattr(numpy, name) for name in PURE)):
        evaluates_call(function)(_folded(function))


if numpy is not None:
    _register()
