"""Which forward values are kept for backward: everything it reads, or a minimum cut by bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from .cost import Recompute, recompute_class, size_in_bytes
from .joint import Joint
from .mincut import Edge, sink_side
from .split import JointView
from .views import view_root

Partitioner = Callable[[JointView], "Partition"]


@dataclass(frozen=True, slots=True)
class Partition:
    """A choice of saved nodes, with what it costs.

    Attributes:
        saved: joint nodes, each memory of its own.
        name: of the partitioner.
        saved_bytes: bytes kept beyond the inputs, by hints.
        recomputed: names of the forward nodes that backward computes again (views left out).
    """

    saved: tuple[torch.fx.Node, ...]
    name: str
    saved_bytes: int
    recomputed: tuple[str, ...]

    def __str__(self) -> str:
        kept = "\n".join(f"  {s.name}: {size_in_bytes(s.meta['val'])}" for s in self.saved)
        again = ", ".join(self.recomputed) or "nothing"
        return f"partition {self.name}: {self.saved_bytes} bytes saved beyond the inputs\n{kept}\nrecomputed: {again}"


def partition_default(joint: Joint | JointView) -> Partition:
    """Saves what backward reads, as eager autograd does; only views are recomputed."""
    view = joint if isinstance(joint, JointView) else JointView.of(joint)
    return _report(view, _read_by_backward(view), "default")


def partition_min_cut(joint: Joint | JointView, *, max_chain: int = 16, tensor_overhead: int = 64) -> Partition:
    """Saves the fewest bytes from which backward can be computed without repeating heavy or random ops.

    Args:
        joint: the joint graph.
        max_chain: longest chain of cheap ops that backward may repeat.
        tensor_overhead: bytes charged per saved tensor beside its elements.

    An output, or an input that is no parameter, is kept only where eager autograd keeps it too: the caller may write to it.
    """
    view = joint if isinstance(joint, JointView) else JointView.of(joint)
    eager = set(_read_by_backward(view))
    view.add_substitutes()
    output_roots = {view_root(v, unsafe=True) for v in view.values if isinstance(v, torch.fx.Node)}
    placeholders = view.joint.gm.graph.find_nodes(op="placeholder")
    static = {p for p, spec in zip(placeholders, view.joint.inputs) if spec.static}
    candidates = [
        n for n in view.joint.gm.graph.nodes if n in view.needed and n not in view.from_tangent and not view.is_size(n)
    ]
    index = {n: i for i, n in enumerate(candidates)}  # node i is the edge from 2 * i to 2 * i + 1
    source, sink = 2 * len(candidates), 2 * len(candidates) + 1

    def capacity(node: torch.fx.Node) -> int | None:
        if not view.can_save(node):
            return None
        if node.op == "placeholder" and node not in view.written:
            return 0 if node in static or node in eager else None
        if node in output_roots and node not in eager and node not in view.written:
            return None
        size = size_in_bytes(node.meta["val"])
        # forward does not need what only backward computes: keeping that instead of its operand must pay
        return size + tensor_overhead + (size // 8 + 1 if node.meta.get("is_backward") else 0)

    edges: list[Edge] = [(source, 2 * index[n], None) for n in _must_run_in_forward(view, candidates, max_chain)]
    for node, i in index.items():
        edges.append((2 * i, 2 * i + 1, 0 if node.op == "get_attr" else capacity(node)))
        edges += [(2 * index[a] + 1, 2 * i, None) for a in view.inputs_again(node) if a in index]
    edges += [(2 * index[a] + 1, sink, None) for a in _read_with_tangents(view) if a in index]
    late = sink_side(edges, source, sink)
    saved = [n for n, i in index.items() if 2 * i not in late and 2 * i + 1 in late and n.op != "get_attr"]
    return _report(view, saved, "min_cut")


PARTITIONERS: dict[str, Partitioner] = {"default": partition_default, "min_cut": partition_min_cut}


def _read_by_backward(view: JointView) -> list[torch.fx.Node]:
    """Memory that eager's backward reads: what its nodes use, traced through views to the owner."""
    in_backward = {n for n in view.needed if n in view.from_tangent or n.meta.get("is_backward")}
    found: dict[torch.fx.Node, None] = {}
    stack = [a for n in in_backward for a in n.all_input_nodes if a not in in_backward]
    stack += [g for g in view.gradients if isinstance(g, torch.fx.Node) and g not in in_backward]
    seen: set[torch.fx.Node] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if view.can_save(node):
            found[node] = None
        elif not view.is_size(node):
            stack.extend(a for a in node.all_input_nodes if a not in in_backward)
    return list(found)


def _read_with_tangents(view: JointView) -> set[torch.fx.Node]:
    """What backward must have at hand: operands of the nodes that depend on a tangent, and gradients that do not."""
    readers = view.from_tangent & view.needed
    gradients = {g for g in view.gradients if isinstance(g, torch.fx.Node)}
    return {a for n in readers for a in n.all_input_nodes} | gradients - view.from_tangent


def _must_run_in_forward(view: JointView, candidates: Iterable[torch.fx.Node], max_chain: int) -> list[torch.fx.Node]:
    replaced = {n.all_input_nodes[0] for n in view.substitutes}  # their statistics are kept instead
    depth: dict[torch.fx.Node, int] = {}
    banned = []
    for node in candidates:
        is_substituted = node in view.substitutes or node.meta.get("is_substitute")
        kind = Recompute.FREE if is_substituted else recompute_class(node)
        kind = Recompute.NEVER if node in replaced else kind
        below = max((depth.get(a, 0) for a in view.inputs_again(node)), default=0)
        depth[node] = below + (kind is Recompute.CHEAP)
        if node.meta.get("is_backward") or node.op == "get_attr":
            continue
        if kind is Recompute.NEVER or node.op == "placeholder" or depth[node] > max_chain:
            depth[node] = 0
            banned.append(node)
    return banned


def _report(view: JointView, saved: Iterable[torch.fx.Node], name: str) -> Partition:
    saved = tuple(saved)
    kept = sum(size_in_bytes(s.meta["val"]) for s in saved if s.op != "placeholder" or s in view.written)
    cut = set(saved)
    again: dict[str, None] = {}
    stack = [a for n in view.needed if n in view.from_tangent for a in n.all_input_nodes]
    seen: set[torch.fx.Node] = set()
    while stack:
        node = stack.pop()
        if node in seen or node in cut or node in view.from_tangent:
            continue
        seen.add(node)
        stack.extend(view.inputs_again(node))
        if not node.meta.get("is_backward") and recompute_class(node) is not Recompute.FREE:
            again[node.name] = None
    return Partition(saved, name, kept, tuple(sorted(again)))
