"""Loggers and warnings: known messages are reported after the graph, in order, once per call."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any

from bytecode_dynamo.bytecode import NO_POSITION, Position
from bytecode_dynamo.errors import GraphBreak, NotConstant
from bytecode_dynamo.function_table import constructs, evaluates_call, evaluates_each
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import Source
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.frame import Frame
from bytecode_dynamo.state.requirements import require_class_attribute
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, BoundRuleVariable, KeyedVariable, Kwargs, Variable
from .callable import CallableVariable, KnownObjectVariable
from .constant import NONE, ConstantVariable
from .userobject import UserObjectVariable
from .wrap import tracker_for

REPORTING = frozenset({"debug", "info", "warning", "warn", "error", "critical", "log"})


def require_known(ctx: Context, args: Args, kwargs: Kwargs, what: str) -> None:
    """Break the graph at a message that depends on data."""
    try:
        for value in (*args, *kwargs.values()):
            value.as_constant(ctx)
    except NotConstant as error:
        raise GraphBreak("BD003", f"{what} with {error}") from None


@dataclass(frozen=True, slots=True, eq=False)
class MessageVariable(Variable):
    """A reporting call, attributed to the line of the captured function."""

    position: Position
    function: VariableTracker
    args: tuple[VariableTracker, ...]
    kwargs: Kwargs

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.emitter.position, before = self.position, gen.emitter.position
        gen.emitter.load_callee(lambda: gen(self.function))
        count = gen.push_all((*self.args, *self.kwargs.values()))
        gen.emitter.call(count, list(self.kwargs))
        gen.emitter.position = before


def report_later(ctx: Context, function: VariableTracker, args: Args, kwargs: Kwargs) -> None:
    """Defer a report until after the graph."""
    root = ctx.frame
    while root is not None and root.parent is not None:
        root = root.parent
    position = root.instruction().position if root is not None else NO_POSITION
    ctx.deferred.add(MessageVariable(position, function, tuple(args), kwargs))


QUESTIONS = ("isEnabledFor", "getEffectiveLevel", "hasHandlers")


@dataclass(frozen=True, slots=True, eq=False)
class LoggerVariable(UserObjectVariable):
    """A ``logging.Logger``; its reporting methods return None."""

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if (name in QUESTIONS or name.removesuffix("_once") in REPORTING) and hasattr(
            self.key.cls, name
        ):
            require_class_attribute(ctx, self.key.cls, name)
            return BoundRuleVariable(self, name)
        return UserObjectVariable.get_attr(self, ctx, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name in QUESTIONS:
            return self._asked(ctx, name, [arg.as_constant(ctx) for arg in args])
        method = self.get_attr(ctx, name)
        if not isinstance(method, BoundRuleVariable):
            return method.call(ctx, args, kwargs)
        require_known(ctx, args, kwargs, f"{self.describe()}.{name}()")
        report_later(ctx, method, args, kwargs)
        return NONE

    def _asked(self, ctx: Context, name: str, args: list[Any]) -> VariableTracker:
        """The logger's current answer, guarded."""
        method = getattr(self.key.cls, name)
        answer = method(self.key.value, *args)
        assert self.source is not None
        same = Answer(f"{{}}.{name}()", lambda logger: method(logger, *args), answer)
        ctx.guards.require(self.source, GuardKind.CUSTOM, same)
        return ConstantVariable(answer)


@tracker_for(logging.Logger)
def wrap_logger(ctx: Context, value: logging.Logger, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.IDENTITY, value)
    return ctx.effects.remember(
        value, LoggerVariable(Identity(type(value), value, source), source=source)
    )


@evaluates_call(warnings.warn)
def warn(ctx: Context, *args: VariableTracker, **kwargs: VariableTracker) -> None:
    require_known(ctx, list(args), kwargs, "warnings.warn()")
    given: dict[str, Any] = {name: value.as_constant(ctx) for name, value in kwargs.items()}
    given |= zip(("message", "category", "stacklevel"), (value.as_constant(ctx) for value in args))
    frame = calling_frame(ctx, given.get("stacklevel", 1))
    if frame is None or given.get("source") is not None or given.get("skip_file_prefixes"):
        raise GraphBreak(
            "BD003", "warnings.warn() on behalf of a caller outside of the captured function"
        )
    place = frame.place()
    known = (
        given["message"],
        given.get("category"),
        place.filename,
        place.line,
        frame.names.mapping,
    )
    report_later(ctx, CallableVariable(report), [KnownObjectVariable(value) for value in known], {})


def calling_frame(ctx: Context, level: int) -> Frame | None:
    """The frame that a warning is attributed to; None if it is not evaluated here."""
    frame = ctx.frame
    while level > 1 and frame is not None:
        frame, level = frame.parent, level - 1
    return frame


def report(
    message: Any, category: Any, filename: str, line: int, variables: dict[str, Any]
) -> None:
    """``warnings.warn`` for a given line of a module."""
    registry = variables.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message, category or UserWarning, filename, line, variables.get("__name__"), registry
    )


_FILTERED = object()


@dataclass(frozen=True, slots=True, eq=False)
class CaughtWarningsVariable(KeyedVariable):
    """``warnings.catch_warnings(...)``, entered and left after the graph, in order with the
    messages.
    """

    options: Kwargs

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        return BoundRuleVariable(self, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name not in ("__enter__", "__exit__"):
            raise GraphBreak("BD003", f"{name} of warnings.catch_warnings()")
        depth = ctx.effects.read(_FILTERED, 0)
        ctx.effects.write(_FILTERED, depth + 1 if name == "__enter__" else depth - 1)
        report_later(ctx, BoundRuleVariable(self, name), [NONE] * len(args), {})
        return NONE

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call(KnownObjectVariable(warnings.catch_warnings), [], list(self.options.items()))
        gen.keep(self.key)


@constructs(warnings.catch_warnings)
def catch_warnings(ctx: Context, **options: VariableTracker) -> VariableTracker:
    require_known(ctx, [], options, "warnings.catch_warnings()")
    if "record" in options and options["record"].truth(ctx):
        raise GraphBreak("BD003", "warnings that are recorded")
    return CaughtWarningsVariable(Identity(warnings.catch_warnings), options)


@evaluates_each(warnings.simplefilter, warnings.filterwarnings)
def filter_warnings(
    ctx: Context, function: Any, *args: VariableTracker, **kwargs: VariableTracker
) -> None:
    what = f"warnings.{function.__name__}()"
    require_known(ctx, args, kwargs, what)
    action = args[0] if args else kwargs["action"]
    if not ctx.effects.read(_FILTERED, 0) or action.as_constant(ctx) == "error":
        raise GraphBreak("BD003", f"{what} outside of warnings.catch_warnings(), or with 'error'")
    report_later(ctx, CallableVariable(function), args, kwargs)
