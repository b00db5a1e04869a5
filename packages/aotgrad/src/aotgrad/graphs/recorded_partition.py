"""Saved values as recorded (``symshapes.choices``), in the place of what a partitioner prefers."""

from __future__ import annotations

from collections.abc import Collection

import torch
from symshapes.choices import current

from .cost import Recompute, recompute_class
from .partition import Partition, report
from .split import JointAnalysis

RULE = "saved for backward"


def as_recorded(view: JointAnalysis, preferred: Partition) -> Partition:
    """The partition that saves the recorded values if backward can be computed from them; else the
    preferred one, which is recorded.
    """
    choices = current()
    if choices is None:
        return preferred
    names, chosen = choices.sequence(RULE), preferred
    nodes = {node.name: node for node in view.joint.gm.graph.nodes}
    if names is not None and [*names] != [node.name for node in preferred.saved]:
        if nodes.keys() >= {*names} and is_legal(view, saved := [nodes[name] for name in names]):
            chosen = report(view, saved, preferred.name)
        else:
            choices.extend(RULE, stale=f"backward can't be computed from {', '.join(names)}")
    choices.extend(RULE)
    for node in chosen.saved:
        choices.extend(RULE, node.name)
    return chosen


def is_legal(view: JointAnalysis, saved: Collection[torch.fx.Node]) -> bool:
    """Whether values may be saved, and backward can compute the others that it reads from them."""
    if len({*saved}) != len(saved) or not all(map(view.can_save, saved)):
        return False
    stack = [a for n in view.needed if n in view.from_tangent for a in n.all_input_nodes]
    stack += [g for g in view.gradients if isinstance(g, torch.fx.Node)]
    done = {*saved, *view.from_tangent}
    while stack:
        node = stack.pop()
        if node in done or view.is_size(node):
            continue
        done.add(node)
        is_repeatable = node in view.interior or (
            recompute_class(node) is not Recompute.NEVER and node not in view.fixed
        )
        if node.op == "placeholder" or not is_repeatable:
            return False
        stack += view.recompute_inputs(node)
    return True
