"""Iterators over other iterators: those of ``zip``, ``enumerate``, ``filter`` and itertools."""

from __future__ import annotations

import itertools
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.reconstruction.iterator_words import (
    chain_at,
    cycle_at,
    following,
)
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import (
    binary_operation,
    raise_error,
)
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.iterator import _FOLLOWING, IteratorVariable

from .base import realize
from .constant import ConstantVariable
from .sequence import new_tuple


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
    """Break under ``fullgraph`` where something outlives the frame that would call a Python
    function later, without a graph.
    """
    if (
        ctx.whole
        and function is not None
        and function.python_type() in (types.FunctionType, types.MethodType)
    ):
        raise GraphBreak("BD013", f"{what} leaves the frame before it has run")


@dataclass(frozen=True, slots=True, eq=False)
class ZipIterator(IteratorVariable):
    """``zip``, ``map`` and ``enumerate``: advance several iterators and combine what they give."""

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
class ChainIterator(IteratorVariable):
    """``itertools.chain`` over what another iterator gives; the current iterator, if any, is kept
    in the effects.
    """

    base: VariableTracker = field(default_factory=lambda: ConstantVariable(None))

    def next(self, ctx: Context) -> VariableTracker | None:
        while True:
            active = ctx.effects.read(self.key, ())
            if not active:
                following = self.base.next(ctx)
                if following is None:
                    return None
                active = (following.iterate(ctx),)
                ctx.effects.write(self.key, active)
            item = active[0].next(ctx)
            if item is not None:
                return item
            ctx.effects.write(self.key, ())

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(chain_at, self.base, *gen.ctx.effects.read(self.key, ()))


@dataclass(frozen=True, slots=True, eq=False)
class CycleIterator(IteratorVariable):
    """``itertools.cycle``: its position is an index into what it saved, inverted while it saves."""

    base: VariableTracker = field(default_factory=lambda: ConstantVariable(None))
    saved: Any = None

    def next(self, ctx: Context) -> VariableTracker | None:
        at = ctx.effects.read(self.key, ~0)
        if at < 0:
            item = self.base.next(ctx)
            if item is not None:
                self.saved.call_method(ctx, "append", [item], {})
                return item
            at = ~at
        items = self.saved.elements(ctx)
        self.advance(ctx, (at + 1) % max(len(items), 1))
        return realize(ctx, items[at]) if items else None

    def reconstruct(self, gen: ValueBuilder) -> None:
        at = gen.ctx.effects.read(self.key, ~0)
        gen.call_const(cycle_at, self.base if at < 0 else (), self.saved, at)


@dataclass(frozen=True, slots=True, eq=False)
class IsliceIterator(IteratorVariable):
    """``itertools.islice`` with constant bounds: its position is how many items it took."""

    base: VariableTracker = field(default_factory=lambda: ConstantVariable(None))
    bounds: tuple[int, int | None, int] = (0, None, 1)

    def next(self, ctx: Context) -> VariableTracker | None:
        taken, wanted = self.position(ctx), following(self.position(ctx), *self.bounds)
        item: VariableTracker | None = ConstantVariable(None)
        while taken <= wanted and taken != self.bounds[1] and item is not None:
            ctx.count_instruction()
            item = self.base.next(ctx)
            taken += item is not None
        if taken != self.position(ctx):
            self.advance(ctx, taken)
        return item if taken > wanted else None

    def reconstruct(self, gen: ValueBuilder) -> None:
        _, stop, step = self.bounds
        taken = self.position(gen.ctx)
        bounds = (
            following(taken, *self.bounds) - taken,
            None if stop is None else max(stop - taken, 0),
            step,
        )
        gen.call(ConstantVariable(itertools.islice), [self.base, *map(ConstantVariable, bounds)])


def islice_bounds(args: Sequence[Any]) -> tuple[int, int | None, int]:
    """The bounds of ``islice(iterable, *args)``."""
    given = slice(*args)
    bounds = (given.start or 0, given.stop, given.step or 1)
    return bounds
