"""Backward from some of a program's results: what leads to the others takes no part, as in eager
mode.

Zeros in the place of an absent tangent do no harm where it is added, or only viewed and summed
before. Multiplied by what forward has computed they would be NaN where that is infinite. For such
sets of tangents the backward graph is cut down to what hangs on those that are given, and compiled
again.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch
from symshapes import LazyGraphModule, PlainGraph

from aotgrad.tracing.view_chains import is_view_op

from .passes import layout_key, remove_dead

aten = torch.ops.aten
Mixes = tuple[tuple[int, int], ...]
_SUMS = frozenset({aten.add.Tensor, aten.sub.Tensor})
# of zeros these make zeros, whatever else they are given
_LINEAR = _SUMS | {
    aten.neg.default, aten.sum.default, aten.sum.dim_IntList, aten.clone.default,
    aten._to_copy.default, aten.cat.default,
    aten.stack.default, aten._unsafe_view.default, aten._reshape_alias.default,
    aten.slice_backward.default,
    aten.select_backward.default, aten.diagonal_backward.default, aten.unfold_backward.default,
    aten.constant_pad_nd.default, operator.getitem,
}  # fmt: skip


def _tangents_behind(
    nodes: Sequence[torch.fx.Node], tangents: Sequence[torch.fx.Node]
) -> dict[torch.fx.Node, int]:
    """For each of the nodes a bit for each tangent that its elements depend on; sizes depend on
    none.
    """
    behind = {t: 1 << i for i, t in enumerate(tangents)}
    for node in nodes:
        if node not in behind:
            is_data = isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))
            behind[node] = (
                reduce(or_, (behind.get(a, 0) for a in node.all_input_nodes), 0) if is_data else 0
            )
    return behind


def readers(gm: torch.fx.GraphModule, count: int) -> dict[str, int]:
    """For each input of a backward graph, by name, a bit for each of its ``count`` tangents whose
    gradients need it.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    nodes = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]
    behind = _tangents_behind(nodes, placeholders[-count:])
    found: dict[torch.fx.Node, int] = {}
    for node in reversed(list(gm.graph.nodes)):
        found[node] = reduce(or_, (behind.get(user, 0) or found[user] for user in node.users), 0)
    return {p.name: found[p] for p in placeholders[:-count]}


def harmful_mixes(gm: torch.fx.GraphModule, count: int) -> Mixes:
    """Pairs of bits: zeros in the place of all tangents of the first do harm where one of the
    second is given.

    ``count``: how many tangents the backward graph takes, its last inputs.
    """
    tangents = gm.graph.find_nodes(op="placeholder")[-count:]
    nodes = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]
    behind = _tangents_behind(nodes, tangents)
    unsafe: set[torch.fx.Node] = set()
    mixes: dict[tuple[int, int], None] = {}
    for node in nodes:
        operands = [a for a in node.all_input_nodes if behind.get(a)]
        if operands and (not _is_linear(node) or any(a in unsafe for a in operands)):
            unsafe.add(node)
        for a in operands:
            if a in unsafe and (rest := behind[node] & ~behind[a]):
                mixes[behind[a], rest] = None
    return tuple(mixes)


def _is_linear(node: torch.fx.Node) -> bool:
    if node.target in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar):
        factor = node.args[1]
        return isinstance(factor, int | float) and factor != 0 and math.isfinite(factor)
    return node.target in _LINEAR or is_view_op(node.target)


def does_harm(given: int, mixes: Mixes) -> bool:
    """Whether zeros may not take the place of the tangents that are not ``given``."""
    return any(not given & absent and given & others for absent, others in mixes)


class PartialBackward:
    """The gradients from some tangents only, compiled for each set of them when that is first
    given.

    Args:
        gm: the backward graph, which is copied.
        count: how many tangents it takes, its last inputs.
        rebuild: compiles a graph.
    """

    def __init__(
        self, gm: torch.fx.GraphModule, count: int, rebuild: Callable[[torch.fx.GraphModule], Any]
    ) -> None:
        self._root, self._graph = gm, _copy(gm.graph)
        self._count = count
        self._rebuild = rebuild
        self._compiled: dict[int, tuple[Any, list[int], int]] = {}

    def __call__(self, given: int, arguments: Sequence[Any]) -> list[torch.Tensor | None]:
        """What the whole backward graph would return, None in the place of what depends on absent
        tangents only.
        """
        given &= (1 << self._count) - 1
        if given not in self._compiled:
            graph, places, total = _cut_down(_copy(self._graph), self._count, given)
            gm = LazyGraphModule(self._root, graph, "PartialBackward")
            self._compiled[given] = (self._rebuild(gm) if places else None), places, total
        call, places, total = self._compiled[given]
        plain = [
            x
            for a in arguments
            for x in (a if isinstance(a, list) else a.tensors() if hasattr(a, "tensors") else [a])
        ]
        gradients: list[torch.Tensor | None] = [None] * total
        if call is not None:
            with torch._C._DisableAutocast():
                found = call(plain) if getattr(call, "takes_list", False) else call(*plain)
            for place, gradient in zip(places, found, strict=True):
                gradients[place] = gradient
        return gradients

    def reads(self, given: int) -> set[str]:
        """The names of the inputs that the gradients from some tangents are computed from."""
        graph, _, _ = _cut_down(_copy(self._graph), self._count, given)
        return {node.name for node in graph.find_nodes(op="placeholder") if node.users}


def _copy(graph: torch.fx.Graph) -> PlainGraph:
    """A copy of a graph in which no input is donated: nobody has looked who else holds it."""
    copied = PlainGraph()
    copied.output(copied.graph_copy(graph, {}))
    for node in copied.find_nodes(op="placeholder"):
        node.meta.pop("donated", None)
    return copied


def _cut_down(graph: PlainGraph, count: int, given: int) -> tuple[PlainGraph, list[int], int]:
    """The graph without what depends on absent tangents only; which of how many gradients are
    left.
    """
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    behind = _tangents_behind(nodes, graph.find_nodes(op="placeholder")[-count:])

    def is_absent(value: Any) -> bool:
        return (
            isinstance(value, torch.fx.Node)
            and behind.get(value, 0) != 0
            and not behind[value] & given
        )

    for node in nodes:
        absent = [a for a in node.all_input_nodes if is_absent(a)]
        if not absent or not behind[node] & given:
            continue
        with graph.inserting_before(node):
            summand = _only_summand(graph, node, absent)
            if summand is not None:
                node.replace_all_uses_with(summand)
                continue
            for operand in absent:
                node.replace_input_with(operand, _zeros_like(graph, operand))
    output = graph.output_node()
    gradients: Any = output.args[0]
    places = [i for i, g in enumerate(gradients) if not is_absent(g)]
    output.args = (tuple(gradients[i] for i in places),)
    remove_dead(graph)
    return graph, places, len(gradients)


def _zeros_like(graph: PlainGraph, operand: torch.fx.Node) -> torch.fx.Node:
    """Zeros, which do not depend on the operand where its sizes are known."""
    value = operand.meta["val"]
    if value.is_contiguous() and all(type(n) is int for n in value.shape):
        options = {"dtype": value.dtype, "device": value.device}
        zeros = graph.call_function(aten.full.default, ([*value.shape], 0), options)
    else:
        zeros = graph.call_function(aten.zeros_like.default, (operand,))
    zeros.meta = dict(operand.meta)
    return zeros


def _only_summand(
    graph: PlainGraph, node: torch.fx.Node, absent: Sequence[torch.fx.Node]
) -> torch.fx.Node | None:
    """The operand to which nothing is added where the other one is absent, laid out as the sum."""
    if node.target not in _SUMS or node.kwargs.get("alpha", 1) != 1 or len(node.args) != 2:
        return None
    left, right = node.args
    rest = right if left in absent else left
    if (
        not isinstance(rest, torch.fx.Node)
        or rest in absent
        or (rest is right and node.target is not aten.add.Tensor)
    ):
        return None
    value, expected = rest.meta["val"], node.meta["val"]
    if layout_key(value)[:-1] == layout_key(expected)[:-1]:
        return rest
    without_strides = slice(len(layout_key(expected)) - expected.dim() - 1)
    if (
        layout_key(value)[without_strides] != layout_key(expected)[without_strides]
        or not expected.is_contiguous()
    ):
        return None
    copy = graph.call_function(
        aten.clone.default, (rest,), {"memory_format": torch.contiguous_format}
    )
    copy.meta = dict(node.meta)
    return copy
