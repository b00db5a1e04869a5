"""Iterators over other iterators: those of ``zip``, ``enumerate``, ``filter`` and itertools."""

from __future__ import annotations

import itertools
import types
from dataclasses import dataclass, field
from typing import Any

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.polyfills.iterators import rebuilt
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING
from bytecode_dynamo.state.protocol import (
    binary_operation,
    raise_error,
    until_stop,
)
from bytecode_dynamo.state.tracker import VariableTracker

from .constant import ConstantVariable
from .iterator import IteratorVariable
from .sequence import ListVariable, new_tuple

_FOLLOWING = object()


@dataclass(frozen=True, slots=True, eq=False)
class CountIterator(IteratorVariable):
    """``itertools.count``."""

    start: VariableTracker = field(default_factory=lambda: ConstantVariable(0))
    step: VariableTracker = field(default_factory=lambda: ConstantVariable(1))

    def next(self, ctx: Context) -> VariableTracker | None:
        value = self._following(ctx)
        self.advance(ctx, self.position(ctx) + 1)
        ctx.effects.write((_FOLLOWING, self.key), binary_operation(ctx, "+", value, self.step))
        return value

    def _following(self, ctx: Context) -> VariableTracker:
        return ctx.effects.read((_FOLLOWING, self.key), self.start)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(itertools.count, self._following(gen.ctx), self.step)


def require_run(ctx: Context, what: str, function: VariableTracker | None) -> None:
    """Break under ``fullgraph`` if a value that leaves the frame would call a Python function
    later, outside of any graph.
    """
    if (
        ctx.whole
        and function is not None
        and function.python_type() in (types.FunctionType, types.MethodType)
    ):
        raise GraphBreak("BD013", f"{what} leaves the frame before it has run")


@dataclass(frozen=True, slots=True, eq=False)
class ZipIterator(IteratorVariable):
    """``zip`` and ``map``: advances several iterators and combines their items."""

    parts: tuple[VariableTracker, ...] = ()
    function: VariableTracker | None = None
    strict: bool = False

    def next(self, ctx: Context) -> VariableTracker | None:
        values = []
        for place, part in enumerate(self.parts):
            value = part.next(ctx)
            if value is None:
                self._check_lengths(ctx, place)
                return None
            values.append(value)
        if not values:
            return None
        return new_tuple(values) if self.function is None else self.function.call(ctx, values, {})

    def _check_lengths(self, ctx: Context, place: int) -> None:
        if not self.strict:
            return
        others = (
            [0]
            if place
            else [k for k in range(1, len(self.parts)) if self.parts[k].next(ctx) is not None][:1]
        )
        for longer in others:
            number, word = (place + 1, "shorter") if place else (longer + 1, "longer")
            before = "argument 1" if number == 2 else f"arguments 1-{number - 1}"
            raise_error(ctx, ValueError, f"zip() argument {number} is {word} than {before}")

    def reconstruct(self, gen: ValueBuilder) -> None:
        function = [] if self.function is None else [self.function]
        require_run(gen.ctx, "a map object", self.function)
        options = [("strict", ConstantVariable(True))] if self.strict else []
        gen.call(
            ConstantVariable(zip if self.function is None else map),
            [*function, *self.parts],
            options,
        )


@dataclass(frozen=True, slots=True, eq=False)
class EnumerateIterator(IteratorVariable):
    """``enumerate``."""

    base: VariableTracker = field(default_factory=lambda: ConstantVariable(None))
    start: int = 0

    def next(self, ctx: Context) -> VariableTracker | None:
        held = getattr(self.base, "base", None)
        below = held.key if self.key.exists and isinstance(held, ListVariable) else None
        if below is not None and ctx.effects.moves(below) is not MISSING:
            raise GraphBreak("BD020", "a list that changes below an enumerate object")
        item = self.base.next(ctx)
        if item is None:
            return None
        at = self.position(ctx)
        self.advance(ctx, at + 1)
        return new_tuple([ConstantVariable(self.start + at), item])

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(enumerate, self.base, self.start + self.position(gen.ctx))


@dataclass(frozen=True, slots=True, eq=False)
class RepeatIterator(IteratorVariable):
    """``itertools.repeat``, endless or not."""

    item: VariableTracker = field(default_factory=lambda: ConstantVariable(None))
    times: int | None = None

    def next(self, ctx: Context) -> VariableTracker | None:
        if self.times is not None:
            if self.position(ctx) >= self.times:
                return None
            self.advance(ctx, self.position(ctx) + 1)
        return self.item

    def reconstruct(self, gen: ValueBuilder) -> None:
        left = [] if self.times is None else [ConstantVariable(self.times - self.position(gen.ctx))]
        gen.call(ConstantVariable(itertools.repeat), [self.item, *left])


@dataclass(frozen=True, slots=True, eq=False)
class FilterIterator(IteratorVariable):
    """``filter``."""

    base: VariableTracker = field(default_factory=lambda: ConstantVariable(None))
    function: VariableTracker | None = None

    def next(self, ctx: Context) -> VariableTracker | None:
        while (item := self.base.next(ctx)) is not None:
            ctx.count_instruction()
            if (item if self.function is None else self.function.call(ctx, [item], {})).truth(ctx):
                return item
        return None

    def reconstruct(self, gen: ValueBuilder) -> None:
        require_run(gen.ctx, "a filter object", self.function)
        gen.call(ConstantVariable(filter), [self.function or ConstantVariable(None), self.base])


@dataclass(frozen=True, slots=True, eq=False)
class PolyfilledIterator(IteratorVariable):
    """An iterator of a native type that a polyfill evaluates. Its position is 0 until the first
    step, then 1.
    """

    polyfill: Any = None

    def next(self, ctx: Context) -> VariableTracker | None:
        if not self.position(ctx):
            self.advance(ctx, 1)
        return until_stop(lambda: self.polyfill.call_method(ctx, "__next__", [], {}))

    def reconstruct(self, gen: ValueBuilder) -> None:
        ctx, polyfill = gen.ctx, self.polyfill.key.cls
        what = f"{self.key.cls.__name__} object"
        started = self.position(ctx) > 0
        if not hasattr(polyfill, "rebuild") or (started and not polyfill.rebuilds_started):
            raise GraphBreak("BD015", f"a {what} is needed after the graph")
        for value in ctx.effects.attributes(self.polyfill.key).values():
            require_run(ctx, f"a {what}", value)
        self.polyfill.complete(gen)
        gen.call_const(rebuilt, self.polyfill)
