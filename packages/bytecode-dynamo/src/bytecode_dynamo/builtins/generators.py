"""torch's random generators: reading or setting their state is a call in the graph, in order with
the draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import constructs, evaluates_call, evaluates_each
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import AttrSource, Source
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import Args, KeyedVariable, Kwargs, method_of_type
from bytecode_dynamo.variables.constant import NONE, ConstantVariable
from bytecode_dynamo.variables.userobject import wrap_opaque
from bytecode_dynamo.variables.wrap import tracker_for

from .graph_calls import wrap_result

MAKE = OpaqueCall(torch.Generator, "Generator")
METHODS = {
    name: OpaqueCall(getattr(torch.Generator, name), name)
    for name in ("manual_seed", "get_state", "set_state")
}


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorObjectVariable(KeyedVariable):
    """A ``torch.Generator``: a graph node; fake calls leave it out."""

    node: Any
    device: torch.device

    def as_proxy(self, ctx: Context) -> Any:
        return self.node

    def as_fake(self, ctx: Context) -> Any:
        return None

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name == "device":
            return ConstantVariable(self.device)
        return method_of_type(ctx, self, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name not in METHODS:
            raise GraphBreak("BD018", f"{name} of a torch.Generator")
        result = _record(
            ctx, METHODS[name], [self, *args, *kwargs.values()], _state_size(self.device)
        )
        return result if name == "get_state" else self

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.load_graph_value(self.node)
        gen.keep(self.key)


def _state_size(device: torch.device) -> int:
    return torch.Generator(device).get_state().numel()


def _require_support(ctx: Context, what: str) -> None:
    ctx.require_once(what)
    if not ctx.host_effects:
        raise GraphBreak(
            "BD018",
            f"{what}: the backend takes graphs of tensors and sizes only",
            "draw outside the compiled region, or use the backend 'torchstrata'",
        )


def _record(ctx: Context, target: Any, args: Args, state_size: int = 0) -> VariableTracker:
    """Record a call whose order matters; if it returns something, that is a state."""
    _require_support(ctx, f"call of {target.__name__}")
    val = None
    if target.__name__ in ("get_state", "get_rng_state"):
        with ctx.mode:
            val = torch.empty(state_size, dtype=torch.uint8, device="cpu")
    node = ctx.graph.add_host_call(target, tuple(arg.as_proxy(ctx) for arg in args), val=val)
    return NONE if val is None else wrap_result(ctx, node, val)


@tracker_for(torch.Generator)
def wrap_generator(ctx: Context, value: torch.Generator, source: Source) -> VariableTracker:
    if not ctx.host_effects or ctx.careful:
        return wrap_opaque(ctx, value, source, "a torch.Generator, which is no value of this graph")
    ctx.guards.require(source, GuardKind.TYPE_IS, torch.Generator)
    ctx.guards.require(AttrSource(source, "device"), GuardKind.EQUALS, value.device)
    ctx.runs_once = True
    node = ctx.graph.add_input(source, value, value)
    made = GeneratorObjectVariable(
        Identity(torch.Generator, value, source), node, value.device, source=source
    )
    return ctx.effects.remember(value, made)


@constructs(torch.Generator)
def make_generator(ctx: Context, device: VariableTracker | None = None) -> VariableTracker:
    _require_support(ctx, "a torch.Generator")
    where = torch.device("cpu" if device is None else device.as_constant(ctx))
    node = ctx.graph.add_host_call(MAKE, (where,))
    return GeneratorObjectVariable(Identity(torch.Generator), node, where)


@evaluates_call(torch.manual_seed)
def manual_seed(ctx: Context, seed: VariableTracker) -> VariableTracker:
    _require_support(ctx, "torch.manual_seed")
    node = ctx.graph.add_host_call(torch.manual_seed, (seed.as_proxy(ctx),))
    return GeneratorObjectVariable(Identity(torch.Generator), node, torch.device("cpu"))


evaluates_call(torch.get_rng_state)(
    lambda ctx: _record(ctx, torch.get_rng_state, [], _state_size(torch.device("cpu")))
)


evaluates_each(torch.set_rng_state, torch.cuda.manual_seed, torch.cuda.manual_seed_all)(
    lambda ctx, function, *args: _record(ctx, function, args)
)
