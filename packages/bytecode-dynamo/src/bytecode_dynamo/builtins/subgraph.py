"""Functions passed to torch transforms, captured as nested graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from symshapes import FakeTensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.graph.builder import NestedGraph
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.state.effects import Identity, owner
from bytecode_dynamo.state.protocol import decide, new_dict, new_list, new_value
from bytecode_dynamo.state.requirements import remember_tensor
from bytecode_dynamo.state.tracker import Args, Kwargs, VariableTracker
from bytecode_dynamo.variables.sequence import new_tuple
from bytecode_dynamo.variables.tensor import TensorVariable

from . import graph_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bytecode_dynamo.state.context import Context


@contextmanager
def nested_graph(ctx: Context) -> Iterator[NestedGraph]:
    """Record torch calls in a nested graph; a graph break discards it."""
    outer = ctx.graph
    inner = NestedGraph(outer)
    ctx.graph = inner
    try:
        yield inner
    except BaseException:
        inner.abandon()
        raise
    finally:
        inner.restore_versions()
        ctx.graph = outer


def parameter(ctx: Context, graph: NestedGraph, fake: Any) -> TensorVariable:
    """A tensor parameter of the nested graph."""
    tracker = TensorVariable(graph.add_parameter(fake), fake)
    remember_tensor(ctx, tracker)
    return tracker


def inner_fake(ctx: Context, value: Any) -> Any:
    """A fake like the argument that the function may differentiate; other values are unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    with ctx.mode, torch.enable_grad():
        inner = value.detach()
        return inner.requires_grad_() if inner.is_floating_point() or inner.is_complex() else inner


@contextmanager
def without_effects(ctx: Context, what: str) -> Iterator[None]:
    """Break if the block changes existing objects: it will run at another time, or not at all."""
    known = {owner(slot) for slot in ctx.effects.slots()}
    mark = ctx.effects.mark()
    yield
    for slot in ctx.effects.slots_since(mark):
        held = owner(slot)
        if isinstance(held, Identity) and (held.exists or held in known):
            raise GraphBreak(
                "BD020",
                f"{what} changes {held.source.shown if held.source else 'an object from outside'}",
            )


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A captured function. It takes the tensors among its arguments, then ``lifted``.

    ``outputs`` is a pytree of its results, in which a Node stands for the next result of the
    module.
    """

    module: GraphModule
    lifted: list[Node]
    outputs: Any

    def bind(self, lifted: Sequence[Any]) -> Callable[..., Any]:
        """The function, bound to its lifted values."""
        leaves, spec = pytree.tree_flatten(self.outputs)

        def run(*args: Any) -> Any:
            tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            results = iter(self.module(*tensors, *lifted))
            return pytree.tree_unflatten(
                [next(results) if isinstance(leaf, Node) else leaf for leaf in leaves], spec
            )

        return run


def capture_subgraph(
    ctx: Context, function: VariableTracker, args: Args, fakes: Any, kwargs: Kwargs
) -> Subgraph:
    """Evaluate ``function(*args, **kwargs)`` with ``fakes`` (nested like the arguments) as its
    tensors.
    """
    with nested_graph(ctx) as graph:
        inner = [rebuilt(ctx, graph, arg, fake) for arg, fake in zip(args, fakes)]
        result = function.call(ctx, inner, kwargs)
        outputs = result.as_proxy(ctx)
        module, lifted = graph.close(
            [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Node)]
        )
    return Subgraph(module, lifted, outputs)


def rebuilt(ctx: Context, graph: NestedGraph, arg: VariableTracker, fakes: Any) -> VariableTracker:
    """An argument whose tensors are parameters of the nested graph."""
    leaves, spec = pytree.tree_flatten(fakes)
    if not any(isinstance(leaf, FakeTensor) for leaf in leaves):
        return arg
    if spec.is_leaf():
        return parameter(ctx, graph, fakes)
    if isinstance(fakes, (tuple, list)):
        items = [rebuilt(ctx, graph, item, fake) for item, fake in zip(arg.unpack(ctx), fakes)]
        return new_tuple(items, type(fakes)) if isinstance(fakes, tuple) else new_list(ctx, items)
    if isinstance(fakes, dict):
        pairs = [(new_value(ctx, key), key, fake) for key, fake in fakes.items()]
        return new_dict(
            ctx,
            [(key, rebuilt(ctx, graph, arg.get_item(ctx, key), fake)) for key, _, fake in pairs],
        )
    raise GraphBreak(
        "BD018", f"a {type(fakes).__name__} as argument of a function under a torch transform"
    )


def call_subgraph(
    ctx: Context, name: str, run: Callable[..., Any], args: Args, *graphs: Subgraph
) -> VariableTracker:
    """Record ``run(*args, *lifted)``; the lifted values follow graph by graph."""
    target = OpaqueCall(run, name, tuple(graph.module for graph in graphs))
    # torch's transforms do not accept symbolic numbers everywhere.
    lifted = [
        decide(ctx, node.meta["val"].__index__, "a size")
        if isinstance(node.meta["val"], torch.SymInt)
        else node
        for graph in graphs
        for node in graph.lifted
    ]
    return graph_calls.call_nodes(ctx, target, args, lifted)
