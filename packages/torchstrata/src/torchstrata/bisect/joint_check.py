"""Whether a wrong gradient comes from before the joint graph was cut in two, or from the cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchstrata.context import Context

from .captured import Calls, compile_eagerly, run_step
from .compare import difference
from .cuts import Part
from .evaluate import fresh, run_graph
from .forms import Reference, seeded


def is_cut_wrong(ctx: Context, part: Part, known: Reference) -> bool:
    """Whether the joint graph of a captured one computes what eager does, but forward and backward
    do not compute what the joint graph does.
    """
    calls = Calls()
    try:
        call = compile_eagerly(ctx, part.graph, calls)
        inputs = fresh(part.inputs)
        seeded(lambda: run_step(call, inputs))
        joint = calls.joint
        if joint is None or known.is_random:
            return False
        given = _given(calls)
        names = [node.name for node in joint.graph.graph.find_nodes(op="placeholder")]
        values: dict[str, tuple[Node, Any]] = {}

        def keep(node: Node, value: Any) -> None:
            values[node.name] = node, value

        outputs = run_graph(joint.graph, [given[name] for name in names], on_node=keep)
    except Exception:
        return False
    if any(_differs(graph, list(own), values) for _, graph, own in calls.made):
        return True
    gradients = dict(zip(joint.gradients_of, outputs[joint.num_values :]))
    leaves = [
        i
        for i, x in enumerate(part.inputs)
        if isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf
    ]
    expected = known.expected[len(known.expected) - len(leaves) :]
    pairs = [(gradients[i], wanted) for i, wanted in zip(leaves, expected) if i in gradients]
    return bool(pairs) and not any(
        actual is not None and difference(actual, wanted) for actual, wanted in pairs
    )


def _given(calls: Calls) -> dict[str, Any]:
    """The inputs and tangents of the calls, by the names that they have in the joint graph."""
    found: dict[str, Any] = {}
    for _, graph, inputs in reversed(calls.made):
        names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
        found |= dict(zip(names, inputs))
    return found


def _differs(
    graph: GraphModule, inputs: Sequence[Any], values: dict[str, tuple[Node, Any]]
) -> bool:
    """Whether a node has another value than the one of its name in the joint graph."""
    found: list[str] = []

    def compare(node: Node, value: Any) -> None:
        known = values.get(node.name)
        is_same = known is not None and known[0].target is node.target
        if node.op == "call_function" and is_same and difference(value, known[1]):  # type: ignore[index]
            found.append(node.name)

    run_graph(graph, inputs, on_node=compare)
    return bool(found)
