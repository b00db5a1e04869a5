"""``torch.cond`` and ``while_loop`` on tensors: each branch is a graph, and the data chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from symshapes import FakeTensor
from torch.utils import _pytree as pytree

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.graph.builder import is_in_place
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.polyfills import control_flow
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_polyfill, decide
from bytecode_dynamo.state.tracker import Args, VariableTracker
from bytecode_dynamo.variables.tensor import TensorVariable

from . import graph_calls
from .subgraph import Subgraph, capture_subgraph, without_effects


@evaluates_call(torch.cond)
def cond(
    ctx: Context, pred: VariableTracker, true_fn: VariableTracker, false_fn: VariableTracker,
    operands: VariableTracker | None = None,
) -> VariableTracker:  # fmt: skip
    given = [] if operands is None else operands.unpack(ctx)
    if not isinstance(pred, TensorVariable):
        return (true_fn if pred.truth(ctx) else false_fn).call(ctx, given, {})
    branches = [
        _captured(ctx, function, given, "a branch of torch.cond")
        for function in (true_fn, false_fn)
    ]
    _require_alike(ctx, branches[0].outputs, branches[1].outputs, "the branches of torch.cond")
    count, split = len(given), len(branches[0].lifted)
    read = [
        *pytree.tree_leaves([arg.as_fake(ctx) for arg in given]),
        *(n.meta["val"] for b in branches for n in b.lifted),
    ]
    tracked = ctx.modes.grad_enabled(ctx) and any(
        getattr(value, "requires_grad", False) for value in read
    )

    def run(chosen: Any, *values: Any) -> Any:
        args, lifted = values[:count], values[count:]
        branch, own = (branches[0], lifted[:split]) if chosen else (branches[1], lifted[split:])
        result = branch.bind(own)(*args)
        if tracked and torch.is_grad_enabled():
            return pytree.tree_map(_in_history, result)
        return result

    return _record(ctx, "cond", run, [pred, *given], branches, branches[0].outputs, tracked)


def _in_history(leaf: Any) -> Any:
    """A result that requires gradients as an operator's would, whether or not the branch reads the
    operands.
    """
    if (
        not isinstance(leaf, torch.Tensor)
        or leaf.requires_grad
        or not (leaf.is_floating_point() or leaf.is_complex())
    ):
        return leaf
    return leaf.detach().requires_grad_().view_as(leaf)


@evaluates_call(control_flow.while_loop)
def while_loop(
    ctx: Context,
    cond_fn: VariableTracker,
    body_fn: VariableTracker,
    carried_inputs: VariableTracker,
) -> VariableTracker:
    carried = carried_inputs.unpack(ctx)
    if not all(isinstance(value, TensorVariable) for value in carried):
        return call_polyfill(ctx, control_flow.while_loop, [cond_fn, body_fn, carried_inputs])
    graphs = [
        _captured(ctx, function, carried, "a function of while_loop")
        for function in (cond_fn, body_fn)
    ]
    state = tuple(value.as_proxy(ctx) for value in carried)
    _require_alike(ctx, state, graphs[1].outputs, "what while_loop carries", ("requires_grad",))
    count, split = len(carried), len(graphs[0].lifted)

    def run(*values: Any) -> Any:
        state, lifted = values[:count], values[count:]
        go_on, body = graphs[0].bind(lifted[:split]), graphs[1].bind(lifted[split:])
        while go_on(*state):
            state = body(*state)
        return tuple(state)

    return _record(ctx, "while_loop", run, carried, graphs, graphs[1].outputs)


def _captured(ctx: Context, function: VariableTracker, args: Args, what: str) -> Subgraph:
    """Capture one of the functions, which must not have effects."""
    fakes = pytree.tree_map(lambda value: _like(ctx, value), [arg.as_fake(ctx) for arg in args])
    with without_effects(ctx, what):
        graph = capture_subgraph(ctx, function, args, fakes, {})
    if any(map(is_in_place, graph.module.graph.nodes)):
        raise GraphBreak(
            "BD020",
            f"{what} writes to a tensor in place",
            "return the changed tensor from the branch",
        )
    return graph


def _like(ctx: Context, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with ctx.mode:
        made = value.detach().requires_grad_(value.requires_grad)
    if isinstance(made, FakeTensor):
        made.constant = None  # a loop returns new values
    return made


def _require_alike(
    ctx: Context, left: Any, right: Any, what: str, further: tuple[str, ...] = ()
) -> None:
    def fact(leaf: Any) -> Any:
        value = leaf.meta["val"] if isinstance(leaf, torch.fx.Node) else leaf
        if isinstance(value, torch.Tensor):
            return [getattr(value, name) for name in ("dtype", "ndim", *further)]
        return value

    (a, spec), (b, other) = pytree.tree_flatten(left), pytree.tree_flatten(right)
    if spec != other or [fact(leaf) for leaf in a] != [fact(leaf) for leaf in b]:
        raise GraphBreak(
            "BD018",
            f"{what} differ in number, kind, dtype or gradients",
            "let both branches return tensors of the same number, dtype and gradient",
        )
    for one, two in zip(a, b):
        if isinstance(one, torch.fx.Node) and isinstance(one.meta["val"], torch.Tensor):
            sizes = zip(one.meta["val"].shape, two.meta["val"].shape)
            if not all(decide(ctx, lambda m=m, n=n: bool(m == n), "a size") for m, n in sizes):
                raise GraphBreak(
                    "BD018",
                    f"{what} differ in sizes",
                    "let both branches return tensors of the same sizes",
                )


def _record(
    ctx: Context, name: str, run: Callable[..., Any], args: Args,
    graphs: list[Subgraph], outputs: Any,
    tracked: bool = False,
) -> VariableTracker:  # fmt: skip
    """Record a call whose results are like ``outputs``; the function that computes them is chosen
    at run time.
    """
    target = OpaqueCall(run, name, tuple(graph.module for graph in graphs))
    target.branches = True
    lifted = [node for graph in graphs for node in graph.lifted]
    with ctx.mode:
        result = pytree.tree_map(lambda leaf: _result_like(leaf, tracked), outputs)
    node = ctx.graph.add_call(target, (*(arg.as_proxy(ctx) for arg in args), *lifted), {}, result)
    return graph_calls.wrap_result(ctx, node, result)


def _result_like(leaf: Any, tracked: bool) -> Any:
    if not isinstance(leaf, torch.fx.Node):
        return leaf
    value = leaf.meta["val"]
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    with torch.enable_grad():
        tracked = tracked and (value.is_floating_point() or value.is_complex())
        return made.requires_grad_().view_as(made) if value.requires_grad or tracked else made
