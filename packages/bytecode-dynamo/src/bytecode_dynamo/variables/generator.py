"""Generators: a suspended frame, whose state is contents in the effects."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bytecode_dynamo.effects import MISSING
from bytecode_dynamo.errors import GraphBreak

from .base import Args, Kwargs, VariableTracker
from .iterator import IteratorVariable

if TYPE_CHECKING:
    from bytecode_dynamo.codegen import Codegen
    from bytecode_dynamo.context import Context


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorVariable(IteratorVariable):
    """A generator made by a call inside the evaluated program; ``frame`` is how it begins."""

    frame: Any = None

    def describe(self) -> str:
        return f"generator {self.frame.code.name}"

    def next(self, ctx: Context) -> VariableTracker | None:
        state = ctx.effects.read(self.key)
        if state is _FINISHED:
            return None
        frame = self.frame.suspended_copy(None if state is MISSING else state)
        if state is not MISSING:
            frame.push(ctx.none)
        try:
            exit_ = ctx.resume_frame(frame)
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
        """What the generator returned."""
        return ctx.effects.read((self.key, "result"), ctx.none)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "close":
            ctx.effects.write(self.key, _FINISHED)
            return ctx.none
        if name in ("send", "throw"):
            raise GraphBreak("BD013", f"generator.{name}()")
        return IteratorVariable.call_method(self, ctx, name, args, kwargs)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name in ("send", "throw", "close"):
            return ctx.bound_rule(self, name)
        return IteratorVariable.get_attr(self, ctx, name)

    def reconstruct(self, gen: Codegen) -> None:
        raise GraphBreak("BD013", f"{self.describe()} is needed after the graph")


class _Finished:
    pass


_FINISHED = _Finished()
GENERATOR_TYPE = types.GeneratorType
