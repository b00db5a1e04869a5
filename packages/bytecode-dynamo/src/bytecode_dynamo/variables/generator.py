"""Generators: suspended frames, with their state in the effects."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import Any

from bytecode_dynamo.bytecode import Op
from bytecode_dynamo.errors import GraphBreak, ObservedException
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING
from bytecode_dynamo.state.frame import Frame, Suspended, finish_send
from bytecode_dynamo.state.protocol import new_exception, raise_error, resume_frame, stop_iteration
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, BoundRuleVariable, Kwargs, realize
from .constant import NONE, ConstantVariable
from .iterator import IteratorVariable, RangeIterator, remaining
from .lazy_iterator import require_run
from .sequence import TupleVariable
from .tensor import TensorVariable

_FINISHED: Any = object()
DELEGATING = 2  # of RESUME: after a yield that belongs to ``yield from``
METHODS = ("send", "throw", "close")
LASTING = (ConstantVariable, TensorVariable, TupleVariable, RangeIterator)


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorVariable(IteratorVariable):
    """A generator created while evaluating; ``frame`` is its initial state."""

    frame: Any = None
    function: VariableTracker | None = None
    args: tuple[tuple[VariableTracker, ...], tuple[tuple[str, VariableTracker], ...]] = ((), ())
    abandoned: list[VariableTracker] | None = None
    """Receives the tracker when the program drops its last reference."""

    def __del__(self) -> None:
        if self.abandoned is not None:
            self.abandoned.append(self)

    def describe(self) -> str:
        return f"generator {self.frame.code.name}"

    def _place(self) -> str:
        """The line of the function, or of the one that a decorator replaced."""
        function = getattr(self.function, "value", None)
        if function is None:
            return f"{self.frame.code.filename}:{self.frame.code.first_line}"
        code = inspect.unwrap(function).__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def next(self, ctx: Context) -> VariableTracker | None:
        return self.send(ctx, NONE)

    def send(self, ctx: Context, value: VariableTracker) -> VariableTracker | None:
        """The value of the next ``yield``, None at the end."""
        state = ctx.effects.read(self.key)
        if state is _FINISHED:
            return None
        frame = self.frame.suspended_copy(None if state is MISSING else state)
        if state is not MISSING:
            frame.push(value)
        elif not value.is_none:
            raise_error(ctx, TypeError, "can't send non-None value to a just-started generator")
        return self._run(ctx, frame, None)

    def _run(
        self, ctx: Context, frame: Frame, raised: ObservedException | None
    ) -> VariableTracker | None:
        try:
            exit_ = resume_frame(ctx, frame, raised)
        except ObservedException as error:
            ctx.effects.write(self.key, _FINISHED)
            if issubclass(error.value.python_type(), StopIteration):
                raise stopped_inside(ctx, error.value) from None
            raise
        except Exception:
            ctx.effects.write(self.key, _FINISHED)
            raise
        if exit_.yielded:
            ctx.effects.write(self.key, frame.suspend())
            return exit_.value
        ctx.effects.write((self.key, "result"), exit_.value)
        ctx.effects.write(self.key, _FINISHED)
        return None

    def result(self, ctx: Context) -> VariableTracker:
        """The return value, once."""
        held = ctx.effects.read((self.key, "result"), NONE)
        ctx.effects.write((self.key, "result"), NONE)
        return held

    def throw(self, ctx: Context, error: VariableTracker) -> VariableTracker | None:
        """Raise an exception at the current ``yield``; returns the value of the next, None at the
        end.
        """
        state = ctx.effects.read(self.key)
        if state is MISSING or state is _FINISHED:
            ctx.effects.write(self.key, _FINISHED)
            guarded = any(
                item.op is Op.CALL_INTRINSIC_1 for item in self.frame.decoded.instructions
            )
            if state is MISSING and not guarded and issubclass(error.python_type(), StopIteration):
                raise stopped_inside(ctx, error)
            raise ObservedException(error)
        frame: Frame = self.frame.suspended_copy(state)
        frame.current = frame.index - 1
        inner = self._delegate(frame)
        if inner is not None and issubclass(error.python_type(), GeneratorExit):
            inner.close(ctx)
        elif inner is not None:
            try:
                item = inner.throw(ctx, error)
            except ObservedException as raised:
                return self._run(ctx, frame, raised)
            if item is not None:
                return item
            place = max(
                k for k in range(frame.index) if frame.decoded.instructions[k].op is Op.SEND
            )
            finish_send(frame, inner.result(ctx))
            frame.jump(frame.decoded.instructions[place].arg)
            return self._run(ctx, frame, None)
        return self._run(ctx, frame, ObservedException(error))

    def _delegate(self, frame: Frame) -> GeneratorVariable | None:
        """The generator that this one delegates to by ``yield from``."""
        following = frame.decoded.instructions[frame.index]
        if following.op is not Op.RESUME or following.arg & 3 != DELEGATING:
            return None
        inner = frame.stack[-1]
        return inner if isinstance(inner, GeneratorVariable) else None

    def close(self, ctx: Context) -> None:
        """Raise GeneratorExit at the current ``yield``."""
        if ctx.effects.read(self.key) in (MISSING, _FINISHED):
            ctx.effects.write(self.key, _FINISHED)
            return
        try:
            item = self.throw(ctx, new_exception(ctx, GeneratorExit, []))
        except ObservedException as raised:
            if not issubclass(raised.value.python_type(), (GeneratorExit, StopIteration)):
                raise
            return
        if item is not None:
            raise_error(ctx, RuntimeError, "generator ignored GeneratorExit")

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "close":
            self.close(ctx)
            return NONE
        if name in ("send", "throw"):
            item = (
                self.send(ctx, args[0]) if name == "send" else self.throw(ctx, _thrown(ctx, args))
            )
            return item if item is not None else stop_iteration(ctx, self)
        return IteratorVariable.call_method(self, ctx, name, args, kwargs)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name in ("__name__", "__qualname__") and self.function is not None:
            return self.function.get_attr(ctx, name)
        if name.startswith("gi_"):
            raise GraphBreak("BD014", f"{name} of a generator")
        if name in METHODS:
            return BoundRuleVariable(self, name)
        return IteratorVariable.get_attr(self, ctx, name)

    def reconstruct(self, gen: ValueBuilder) -> None:
        ctx = gen.ctx
        state = ctx.effects.read(self.key)
        if state is MISSING and self.function is not None:
            require_run(ctx, f"{self.describe()} ({self._place()})", self.function)
            gen.call(self.function, *self.args)
            return
        held = () if state is _FINISHED else (*state.slots.values(), *state.stack)
        if not all(isinstance(realize(ctx, value), LASTING) for value in held):
            raise GraphBreak("BD015", f"{self.describe()} is needed after the graph")
        code = self.frame.decoded.instructions
        receives = (
            item.op is Op.YIELD_VALUE and code[k + 2].op is not Op.POP_TOP
            for k, item in enumerate(code)
        )
        if any(receives):
            raise GraphBreak(
                "BD015",
                f"{self.describe()}, which handles what it is sent, is needed after the graph",
            )
        items = remaining(gen, self)
        gen.call(
            ConstantVariable(replay),
            [TupleVariable(tuple(items)), ctx.effects.read((self.key, "result"), NONE)],
        )


def close_abandoned(ctx: Context) -> None:
    """Close started generators that the program dropped; like the interpreter, ignore their
    exceptions.
    """
    while ctx.abandoned:
        generator = ctx.abandoned.pop(0)
        state = ctx.effects.read(generator.key)
        if isinstance(state, Suspended):
            with contextlib.suppress(ObservedException):
                generator.close(ctx)
            ctx.abandoned += [
                held
                for held in state.stack
                if isinstance(held, GeneratorVariable) and not _is_named(ctx, held)
            ]


def _is_named(ctx: Context, value: VariableTracker) -> bool:
    """Whether a local of an evaluated frame holds a value."""
    frame = ctx.frame
    while frame is not None:
        if any(held is value for held in (*frame.slots.values(), *frame.stack)):
            return True
        frame = frame.parent
    return False


def require_none_started(ctx: Context) -> None:
    """Break if a started generator is inside of an exception handler: no code can rebuild that
    state.
    """
    for slot in ctx.effects.slots():
        state = ctx.effects.read(slot)
        if isinstance(state, Suspended) and state.handles:
            raise GraphBreak("BD015", "a generator that handles exceptions is suspended here")


def stopped_inside(ctx: Context, error: VariableTracker) -> ObservedException:
    """The RuntimeError for a StopIteration that leaves a generator's body."""
    changed = new_exception(ctx, RuntimeError, [ConstantVariable("generator raised StopIteration")])
    for name in ("__cause__", "__context__"):
        changed.set_attr(ctx, name, error)
    changed.set_attr(ctx, "__suppress_context__", ConstantVariable(True))
    return ObservedException(changed)


def replay(items: tuple[Any, ...], result: Any) -> Any:
    """A started generator of another's remaining values; called by generated code."""
    made = _replay(items, result)
    next(made)
    return made


def _replay(items: tuple[Any, ...], result: Any) -> Any:
    yield
    yield from items
    return result


def _thrown(ctx: Context, args: Args) -> VariableTracker:
    """The exception that ``throw(type_or_value, value=None, traceback=None)`` raises."""
    first, *rest = args
    if isinstance(first, ConstantVariable) or not hasattr(first, "value"):
        return first
    given = [arg for arg in rest[:1] if not arg.is_none]
    if given and issubclass(given[0].python_type(), first.as_constant(ctx)):
        return given[0]
    return first.call(ctx, given, {})
