"""How many autograd nodes a call needs: results that have nothing in common are differentiated
apart.
"""

from __future__ import annotations

from typing import Any

import torch

from aotgrad.tracing.view_chains import view_root, view_source

from .split import JointAnalysis, ancestors, saved_by_eager

MAX_NODES = 8
"""Autograd nodes of a call: each has a backward graph of its own, which is compiled when it is
first called.
"""


def merge_nodes(view: JointAnalysis) -> None:
    """Leaves the results of ``joint.nodes`` apart, but for many, of which those stay apart whose
    backward reads other things.

    Backward of a result must not pass what inputs of others were computed from: it would be freed.
    Nor may it find that a tensor was written to that only the backward of others reads.
    """
    joint = view.joint
    placeholders = view.joint.gm.graph.find_nodes(op="placeholder")
    held = view.exposed | {*placeholders[: len(joint.inputs)]}
    merged: dict[Any, tuple[set[int], set[int]]] = {}
    for results, inputs in joint.nodes:
        histories = tuple(k for k in inputs if not joint.inputs[joint.gradients_of[k]].is_leaf)
        reached = _reached(view, [placeholders[len(joint.inputs) + k] for k in results])
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


def _reached(view: JointAnalysis, tangents: list[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes that depend on some of the tangents."""
    found = set(tangents)
    for node in view.joint.gm.graph.nodes:
        if node.op == "call_function" and any(a in found for a in node.all_input_nodes):
            found.add(node)
    return found


def _reads(node: torch.fx.Node, memory: set[torch.fx.Node]) -> bool:
    return view_source(node, unsafe=True) is None and any(
        view_root(a, unsafe=True) in memory for a in node.all_input_nodes
    )
