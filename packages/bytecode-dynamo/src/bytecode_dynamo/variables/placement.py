"""Placements of DTensors, which are constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bytecode_dynamo.guards.records import ABSENT, Answer, GuardKind
from bytecode_dynamo.guards.source import Source
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import fold_call, new_value, raise_no_attribute
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, BoundRuleVariable, Kwargs
from .callable import KnownObjectVariable
from .wrap import tracker_for, wrap_object

PLACEMENTS = tuple(
    f"torch.distributed.tensor.placement_types.{name}"
    for name in ("Shard", "Replicate", "Partial", "_StridedShard", "_MaskPartial")
)


@dataclass(frozen=True, slots=True, eq=False)
class PlacementVariable(KnownObjectVariable):
    """A placement, which never changes, or the spec of a DTensor in the graph."""

    def describe(self) -> str:
        return repr(self.value)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        found = getattr(self.value, name, ABSENT)
        if found is ABSENT:
            return raise_no_attribute(ctx, type(self.value), name)
        return BoundRuleVariable(self, name) if callable(found) else new_value(ctx, found)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        return fold_call(ctx, getattr(self.value, name), args, kwargs)


@tracker_for(*PLACEMENTS)
def wrap_placement(ctx: Context, value: Any, source: Source) -> VariableTracker:
    cls = type(value)
    if f"{cls.__module__}.{cls.__qualname__}" not in PLACEMENTS:  # a class of the program's
        return wrap_object(ctx, value, source)
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    ctx.guards.require(source, GuardKind.CUSTOM, Answer("{}", lambda now: now, value))
    return PlacementVariable(value, source=source)
