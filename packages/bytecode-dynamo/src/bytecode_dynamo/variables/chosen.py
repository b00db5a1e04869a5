"""``max`` and ``min`` of tensors: data decides which of them the program gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.graph.builder import NestedGraph
from bytecode_dynamo.marker import Marker
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_torch
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, Kwargs
from .constant import NONE
from .tensor import TensorVariable

_CHOICES = Marker("choices")
_OF_THE_OBJECT = frozenset(["_version", "_base", "data", "grad", "_is_view", "register_hook"])


@dataclass(frozen=True, slots=True, eq=False)
class ChosenVariable(TensorVariable):
    """One of two tensors; the graph computes with a copy of it. What tells the copy from the
    tensor breaks the graph.
    """

    takes_other: VariableTracker = NONE
    first: VariableTracker = NONE
    other: VariableTracker = NONE

    def refuse(self, what: str) -> None:
        """Break the graph where the program would see which tensor it is."""
        raise GraphBreak("BD001", f"{what} of a tensor that max() or min() chooses by its value")

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name in _OF_THE_OBJECT:
            self.refuse(f"attribute {name!r}")
        return TensorVariable.get_attr(self, ctx, name)

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        self.refuse(f"assignment to {name!r}")

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name in _OF_THE_OBJECT or (name.endswith("_") and not name.endswith("__")):
            self.refuse(f"{name}()")
        return TensorVariable.call_method(self, ctx, name, args, kwargs)

    def hash_key(self, ctx: Context) -> Any:
        return self.refuse("the hash")

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(_chosen, self.takes_other, self.other, self.first)


def _chosen(takes_other: torch.Tensor, other: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    return other if takes_other else first


def can_choose(ctx: Context, items: Sequence[VariableTracker]) -> bool:
    """Whether a graph can compute with whichever of these the program chooses: they differ in
    nothing but their value and identity.
    """
    if not ctx.chooses or isinstance(ctx.graph, NestedGraph) or ctx.modes.function_modes(ctx):
        return False
    if not all(isinstance(item, TensorVariable) and item.cls is torch.Tensor for item in items):
        return False
    fakes = [item.as_fake(ctx) for item in items]
    plain = all(
        type(size) is int and size == 1 for fake in fakes for size in (*fake.shape, fake.numel())
    )
    facts = {
        (fake.dim(), fake.dtype, fake.device, fake.layout, fake.stride()) for fake in fakes if plain
    }
    return len(facts) == 1 and not any(fake.requires_grad for fake in fakes)


def choose(
    ctx: Context, takes_other: VariableTracker, first: VariableTracker, other: VariableTracker
) -> VariableTracker:
    """``other`` if the 0-dim bool holds, else ``first``."""
    made: Any = call_torch(ctx, torch.where, [takes_other, other, first])
    chosen = ChosenVariable(
        made.node, made.fake, made.cls, takes_other, first, other, source=made.source
    )
    ctx.tensors[id(made.fake)] = chosen
    memory = {value.as_fake(ctx).untyped_storage()._cdata for value in (made, first, other)}
    choice = (len(ctx.mode.events), memory, made.node)
    ctx.effects.write(_CHOICES, (*ctx.effects.read(_CHOICES, ()), choice))
    return chosen


def shows_copies(ctx: Context, outputs: Sequence[Node]) -> bool:
    """Whether a graph writes to what was chosen or chosen from, or returns views of the copies."""
    choices = ctx.effects.read(_CHOICES, ())
    copies = {node.meta["val"].untyped_storage()._cdata: node for _, _, node in choices}
    written = any(
        event in memory for start, memory, _ in choices for event in ctx.mode.events[start:]
    )
    return written or any(
        copies.get(value.untyped_storage()._cdata, node) is not node
        for node in outputs
        if isinstance(value := node.meta["val"], torch.Tensor) and copies
    )
