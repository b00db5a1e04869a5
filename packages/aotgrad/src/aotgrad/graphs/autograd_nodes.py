"""Groups results into autograd nodes: results with nothing in common get nodes of their own."""

from __future__ import annotations

from typing import Any

import torch

from aotgrad.tracing.view_chains import view_root, view_source

from .split import JointAnalysis, ancestors, descendants, saved_by_eager

MAX_NODES = 8
"""Most autograd nodes of a call. Each has a backward graph of its own, compiled on first use."""


def merge_nodes(view: JointAnalysis) -> None:
    """Merges nodes where there are more than MAX_NODES. Nodes stay apart if their gradients reach
    other histories, or if their backward reads other memory.

    Backward of one result must not reach the histories of the others: that would free them. Nor may
    it fail for a write to a tensor that only the backward of others reads.
    """
    joint = view.joint
    held = view.exposed | {*joint.input_nodes}
    tangents = joint.tangents
    merged: dict[Any, tuple[set[int], set[int]]] = {}
    for results, inputs in joint.nodes:
        histories = tuple(k for k in inputs if not joint.inputs[joint.gradients_of[k]].is_leaf)
        reached = descendants(joint.gm.graph, [tangents[k] for k in results])
        read = frozenset(held.intersection(saved_by_eager(view, reached)))
        key = results if len(joint.nodes) <= MAX_NODES else (histories, read)
        of_results, of_inputs = merged.setdefault(key, (set(), set()))
        of_results.update(results)
        of_inputs.update(inputs)
        view.fixed |= {
            n
            for n in ancestors(reached & view.needed)
            if view.is_forward(n) and _reads(n, held - read)
        }
    joint.nodes = (
        tuple((tuple(sorted(r)), tuple(sorted(i))) for r, i in merged.values())
        if len(merged) > 1
        else ()
    )


def _reads(node: torch.fx.Node, memory: set[torch.fx.Node]) -> bool:
    return view_source(node, unsafe=True) is None and any(
        view_root(a, unsafe=True) in memory for a in node.all_input_nodes
    )
