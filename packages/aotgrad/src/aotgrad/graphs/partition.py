"""Chooses the forward values saved for backward: all that it reads, or a minimum cut by bytes and
recompute time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from aotgrad.tracing.joint import Joint

from .cost import Recompute, recompute_class, recompute_cost, size_in_bytes
from .mincut import Edge, sink_side
from .split import JointAnalysis

Partitioner = Callable[[JointAnalysis], "Partition"]
TENSOR_OVERHEAD = 64  # bytes charged per saved tensor beside its elements
_DEFAULT_PRICE = 1 / 64  # bytes that may be kept to spare one byte of cheap recomputation
MAX_CHAIN = 16


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """One way to partition, of those that were considered.

    Attributes:
        saved_bytes: kept beyond the inputs.
        cost: of what backward repeats, in bytes that could be moved meanwhile.
    """

    saved_bytes: int
    cost: int


@dataclass(frozen=True, slots=True)
class Partition:
    """A choice of saved nodes, with what it costs.

    Attributes:
        saved: joint nodes, each memory of its own.
        name: of the partitioner.
        saved_bytes: bytes kept beyond the inputs, by hints.
        recomputed: names of the forward nodes that backward computes again (views left out).
        cost: estimate of the time that takes, as bytes that could be moved meanwhile.
        pareto: the choices that a memory budget was chosen from, by falling bytes.
    """

    saved: tuple[torch.fx.Node, ...]
    name: str
    saved_bytes: int
    recomputed: tuple[str, ...]
    cost: int = 0
    pareto: tuple[ParetoPoint, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"partition {self.name}: {self.saved_bytes} bytes saved beyond the inputs, recompute "
            f"cost {self.cost}"
        ]
        lines += [f"  {s.name}: {size_in_bytes(s.meta['val'])}" for s in self.saved]
        lines.append(f"recomputed: {', '.join(self.recomputed) or 'nothing'}")
        for c in self.pareto:
            mark = "  <- chosen" if (c.saved_bytes, c.cost) == (self.saved_bytes, self.cost) else ""
            lines.append(f"pareto: {c.saved_bytes} bytes, recompute cost {c.cost}{mark}")
        return "\n".join(lines)


def partition_default(joint: Joint | JointAnalysis) -> Partition:
    """Saves what backward reads, as eager autograd does; only views and checkpoints are
    recomputed.
    """
    view = JointAnalysis.of(joint)
    return report(view, view.saved_in_eager, "default")


def partition_min_cut(joint: Joint | JointAnalysis, *, max_chain: int = MAX_CHAIN) -> Partition:
    """Saves the fewest bytes from which backward can be computed without repeating heavy or random
    ops.

    Args:
        joint: the joint graph.
        max_chain: longest chain of cheap ops that backward may repeat.

    An output, or an input that is no parameter, is kept only where eager autograd keeps it too: the
    caller may write to it.
    """
    return MinCut(joint, max_chain).choose(_DEFAULT_PRICE, "min_cut")


PARTITIONERS: dict[str, Partitioner] = {"default": partition_default, "min_cut": partition_min_cut}


class MinCut:
    """Minimum cuts of one joint graph at different prices of recomputation.

    A node is computed in backward if it lies behind the cut, and kept if the cut goes through it.
    The cut pays for the bytes of the latter and the recompute cost of the former, so that it is the
    best choice there is at a price.

    Args:
        joint: the joint graph.
        max_chain: longest chain of ops that backward may repeat, checkpoints excepted.
        heavy: whether matrix products and the like may be repeated, too.
    """

    def __init__(
        self, joint: Joint | JointAnalysis, max_chain: int, *, heavy: bool = False
    ) -> None:
        self.view = view = JointAnalysis.of(joint)
        eager = set(view.saved_in_eager)
        view.substitutes = {}
        # repeating the op itself gives the same bits, on which whole layers may build
        if not heavy:
            view.add_substitutes()
        candidates = [
            n
            for n in view.joint.gm.graph.nodes
            if n in view.needed and n not in view.from_tangent and not view.is_size(n)
        ]
        # node i is the edge from 2 * i to 2 * i + 1
        self._index = {n: i for i, n in enumerate(candidates)}
        self._banned = _banned_from_backward(view, candidates, max_chain, heavy)
        free = _cpu_creations(view, candidates, self._banned)
        self._capacity = [None if n in free else self._bytes_to_keep(n, eager) for n in candidates]
        self._cost = [_cost(view, n) for n in candidates]

    def choose(self, price: float, name: str) -> Partition:
        """The best partition when a unit of recompute cost is worth ``price`` bytes."""
        view, index = self.view, self._index
        source, sink = 2 * len(index), 2 * len(index) + 1
        edges: list[Edge] = []
        for node, i in index.items():
            if node in self._banned:
                edges.append((source, 2 * i, None))
            elif self._cost[i]:
                # of equal layers the first ones go first, so that neighbouring prices differ by one
                # layer
                edges.append(
                    (source, 2 * i, int(self._cost[i] * price * (1 + i / len(index) / 4)) + 1)
                )
            edges.append((2 * i, 2 * i + 1, self._capacity[i]))
            edges += [
                (2 * index[a] + 1, 2 * i, None) for a in view.recompute_inputs(node) if a in index
            ]
        edges += [(2 * index[a] + 1, sink, None) for a in _backward_operands(view) if a in index]
        late = sink_side(edges, source, sink)
        saved = [
            n
            for n, i in index.items()
            if 2 * i not in late and 2 * i + 1 in late and n.op != "get_attr"
        ]
        return report(view, saved, name)

    def _bytes_to_keep(self, node: torch.fx.Node, eager: set[torch.fx.Node]) -> int | None:
        view = self.view
        if node.op == "get_attr":
            return 0
        if not view.can_save(node):
            return None
        if node.op == "placeholder" and not view.must_copy(node):
            return 0
        if node.op == "placeholder" and node not in view.written and node not in view.static:
            return None
        if node in view.exposed and node not in eager and node not in view.written:
            return None
        size = size_in_bytes(node.meta["val"])
        # forward does not need what only backward computes: keeping that instead of its operand
        # must pay
        is_extra = node.meta.get("is_backward") or node.op == "placeholder"
        return size + TENSOR_OVERHEAD + (size // 8 + 1 if is_extra else 0)


def _cpu_creations(
    view: JointAnalysis, candidates: Iterable[torch.fx.Node], banned: set[torch.fx.Node]
) -> set[torch.fx.Node]:
    """Tensors that a program for another device creates on the CPU, such as indices: saving one
    would tie both graphs to the CPU.
    """
    inputs = view.joint.gm.graph.find_nodes(op="placeholder")
    values = [n.meta["val"] for n in inputs]
    if all(v.device.type == "cpu" for v in values if isinstance(v, torch.Tensor)):
        return set()
    free: set[torch.fx.Node] = set()
    for node in candidates:
        value = node.meta["val"]
        here = node.op == "call_function" and (
            not isinstance(value, torch.Tensor) or value.device.type == "cpu"
        )
        if here and node not in banned and free.issuperset(node.all_input_nodes):
            free.add(node)
    return free


def _cost(view: JointAnalysis, node: torch.fx.Node) -> int:
    belongs_there = node.meta.get("is_backward") and not node.meta.get("is_substitute")
    if belongs_there or node in view.substitutes or node.op != "call_function":
        return 0
    return recompute_cost(node)


def _backward_operands(view: JointAnalysis) -> set[torch.fx.Node]:
    """What backward reads: operands of the nodes that depend on a tangent, and gradients that do
    not depend on one.
    """
    readers = view.from_tangent & view.needed
    gradients = {g for g in view.gradients if isinstance(g, torch.fx.Node)}
    return {a for n in readers for a in n.all_input_nodes} | gradients - view.from_tangent


def _banned_from_backward(
    view: JointAnalysis, candidates: Iterable[torch.fx.Node], max_chain: int, heavy: bool
) -> set[torch.fx.Node]:
    replaced = {
        n.all_input_nodes[0] for n in view.substitutes if n.target is operator.getitem
    }  # their statistics are kept instead
    depth: dict[torch.fx.Node, int] = {}
    banned = set()
    for node in candidates:
        if node in view.interior:
            depth[node] = 0
            continue
        is_substituted = node in view.substitutes or node.meta.get("is_substitute")
        kind = Recompute.FREE if is_substituted else recompute_class(node)
        below = max((depth.get(a, 0) for a in view.recompute_inputs(node)), default=0)
        depth[node] = below + (kind in (Recompute.CHEAP, Recompute.HEAVY))
        if node.meta.get("is_backward") or node.op == "get_attr":
            continue
        is_heavy = kind is Recompute.HEAVY or node in replaced or node in view.fixed
        is_heavy = is_heavy or node.meta.get("read_by_product", False)
        is_dear = kind is Recompute.NEVER or (is_heavy and not heavy)
        if is_dear or node.op == "placeholder" or depth[node] > max_chain:
            depth[node] = 0
            banned.add(node)
    return banned


def report(view: JointAnalysis, saved: Iterable[torch.fx.Node], name: str) -> Partition:
    """The partition that saves these nodes, with its bytes and recompute cost."""
    saved = tuple(saved)
    kept = sum(
        size_in_bytes(s.meta["val"]) for s in saved if s.op != "placeholder" or view.must_copy(s)
    )
    cut = set(saved)
    again: dict[torch.fx.Node, None] = {}
    stack = [a for n in view.needed if n in view.from_tangent for a in n.all_input_nodes]
    seen: set[torch.fx.Node] = set()
    while stack:
        node = stack.pop()
        if node in seen or node in cut or node in view.from_tangent:
            continue
        seen.add(node)
        stack.extend(view.recompute_inputs(node))
        is_repeated = not node.meta.get("is_backward") or node.meta.get("is_substitute")
        if is_repeated and recompute_class(node) is not Recompute.FREE:
            again[node] = None
    names = sorted(n.name for n in again if not n.meta.get("is_substitute"))
    return Partition(saved, name, kept, tuple(names), sum(_cost(view, n) for n in again))
