"""Texts of changing numbers. Most are messages that are never read, so that they need no guard."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import fold_call
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, Kwargs, Variable
from .constant import ConstantVariable, SymbolicVariable
from .sequence import TupleVariable


@dataclass(frozen=True, slots=True, eq=False)
class TextVariable(Variable):
    """``function(*parts)``. If the program reads the text, guards specialise its numbers."""

    function: Callable[..., str]
    parts: tuple[VariableTracker, ...]

    def python_type(self) -> type:
        return str

    def describe(self) -> str:
        return "a text of numbers that change"

    def as_constant(self, ctx: Context) -> str:
        return self.function(*(part.as_constant(ctx) for part in self.parts))

    def read(self, ctx: Context) -> ConstantVariable:
        """The current text, which specialises its numbers."""
        return ConstantVariable(self.as_constant(ctx))

    def hash_key(self, ctx: Context) -> Hashable:
        return self.as_constant(ctx)

    def truth(self, ctx: Context) -> bool:
        return bool(self.as_constant(ctx))

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        return self.read(ctx).get_attr(ctx, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        return self.read(ctx).call_method(ctx, name, args, kwargs)

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        return self.read(ctx).get_item(ctx, key)

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        return self.read(ctx).contains(ctx, item)

    def length(self, ctx: Context) -> VariableTracker:
        return self.read(ctx).length(ctx)

    def iterate(self, ctx: Context) -> VariableTracker:
        return self.read(ctx).iterate(ctx)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(self.function, *self.parts)


def text_of(
    ctx: Context, function: Callable[..., str], parts: Sequence[VariableTracker]
) -> VariableTracker:
    """The text of a function's result: known, or of changing numbers if it is valid for all of
    them.
    """
    changing = [changes(part) for part in parts]
    known = all(late or isinstance(part, ConstantVariable) for late, part in zip(changing, parts))
    if (
        any(changing)
        and known
        and all(_succeeds(function, parts, number) for number in (7, 1 << 62))
    ):
        return TextVariable(function, tuple(parts))
    return fold_call(ctx, function, list(parts))


def changes(part: VariableTracker) -> bool:
    """Whether a part of a text is a changing number, a text of such, or a tuple of only these and
    constants.
    """
    if isinstance(part, TupleVariable) and part.cls in (tuple, torch.Size):
        late = [changes(item) for item in part.items]
        return any(late) and all(
            one or isinstance(item, ConstantVariable) for one, item in zip(late, part.items)
        )
    return isinstance(part, (SymbolicVariable, TextVariable))


def joined(*parts: str) -> str:
    """The result of an f-string's parts."""
    return "".join(parts)


def interpolated(template: str, *values: Any) -> str:
    """``template % values``."""
    return template % values


def _succeeds(function: Callable[..., str], parts: Sequence[VariableTracker], number: int) -> bool:
    try:
        function(*(_example(part, number) for part in parts))
    except Exception:
        return False
    return True


def _example(part: VariableTracker, number: int) -> Any:
    if isinstance(part, TextVariable):
        return part.function(*(_example(inner, number) for inner in part.parts))
    if isinstance(part, TupleVariable):
        return part.cls(_example(item, number) for item in part.items)
    return part.value if isinstance(part, ConstantVariable) else part.python_type()(number)
