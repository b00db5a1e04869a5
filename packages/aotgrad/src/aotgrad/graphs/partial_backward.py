"""Backward from some of a program's results; as in eager, the others take no part.

Usually zeros can replace an absent tangent: if it is only viewed, summed and added. But zero times
an infinite value of forward is NaN. For such sets of tangents, the backward graph is reduced to
what depends on the given ones, and compiled again.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch
from symshapes import LazyGraphModule, PlainGraph

from aotgrad.tracing.view_chains import is_view_op

from .passes import is_laid_out_alike, layout_key, remove_dead

aten = torch.ops.aten
UnsafeMasks = tuple[tuple[int, int], ...]
_SUMS = frozenset({aten.add.Tensor, aten.sub.Tensor})
# these map zeros to zeros, whatever their other arguments
_LINEAR = _SUMS | {
    aten.neg.default, aten.sum.default, aten.sum.dim_IntList, aten.clone.default,
    aten._to_copy.default, aten.cat.default,
    aten.stack.default, aten._unsafe_view.default, aten._reshape_alias.default,
    aten.slice_backward.default,
    aten.select_backward.default, aten.diagonal_backward.default, aten.unfold_backward.default,
    aten.constant_pad_nd.default, operator.getitem,
}  # fmt: skip


def tangent_masks(
    nodes: Iterable[torch.fx.Node],
    tangents: Sequence[torch.fx.Node],
    *,
    through_sizes: bool = False,
) -> dict[torch.fx.Node, int]:
    """For each node, the bits of the tangents that it depends on.

    ``through_sizes``: whether a size of a tangent depends on it.
    """
    masks = {t: 1 << i for i, t in enumerate(tangents)}
    for node in nodes:
        if node not in masks:
            is_data = isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))
            operands = node.all_input_nodes if is_data or through_sizes else ()
            masks[node] = reduce(or_, (masks.get(a, 0) for a in operands), 0)
    return masks


def readers(gm: torch.fx.GraphModule, count: int) -> dict[str, int]:
    """For each input of a backward graph, by name, the bits of the tangents (of ``count``) whose
    gradients need it.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    masks = tangent_masks(_calls(gm.graph), placeholders[-count:])
    needed_by: dict[torch.fx.Node, int] = {}
    for node in reversed(list(gm.graph.nodes)):
        users = (masks.get(user, 0) or needed_by[user] for user in node.users)
        needed_by[node] = reduce(or_, users, 0)
    return {p.name: needed_by[p] for p in placeholders[:-count]}


def _calls(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [n for n in graph.nodes if n.op not in ("placeholder", "output")]


def unsafe_zero_masks(gm: torch.fx.GraphModule, count: int) -> UnsafeMasks:
    """Pairs of masks: zeros must not replace all tangents of the first mask if one of the second is
    given.

    ``count``: the number of tangents, which are the last inputs of the backward graph.
    """
    nodes = _calls(gm.graph)
    masks = tangent_masks(nodes, gm.graph.find_nodes(op="placeholder")[-count:])
    unsafe: set[torch.fx.Node] = set()
    pairs: dict[tuple[int, int], None] = {}
    for node in nodes:
        operands = [a for a in node.all_input_nodes if masks.get(a)]
        if operands and (not _is_linear(node) or any(a in unsafe for a in operands)):
            unsafe.add(node)
        for a in operands:
            if a in unsafe and (others := masks[node] & ~masks[a]):
                pairs[masks[a], others] = None
    return tuple(pairs)


def _is_linear(node: torch.fx.Node) -> bool:
    if node.target in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar):
        factor = node.args[1]
        return isinstance(factor, int | float) and factor != 0 and math.isfinite(factor)
    return node.target in _LINEAR or is_view_op(node.target)


class PartialBackward:
    """Gradients from some tangents only; compiled for each set of tangents on its first use.

    Args:
        gm: the backward graph, which is copied.
        count: the number of tangents, which are its last inputs.
        compile: compiles a graph.
    """

    def __init__(
        self, gm: torch.fx.GraphModule, count: int, compile: Callable[[torch.fx.GraphModule], Any]
    ) -> None:
        self._root, self._graph = gm, _copy(gm.graph)
        self._count = count
        self._compile = compile
        self._compiled: dict[int, tuple[Any, list[int], list[int], int]] = {}

    def __call__(self, given: int, arguments: Sequence[Any]) -> list[torch.Tensor | None]:
        """The gradients of the whole backward graph; None for those of absent tangents only."""
        given &= (1 << self._count) - 1
        if given not in self._compiled:
            graph, indices, total = _reduce(_copy(self._graph), self._count, given)
            read = _remove_unread(graph)
            gm = LazyGraphModule(self._root, graph, "PartialBackward")
            self._compiled[given] = (self._compile(gm) if indices else None), read, indices, total
        call, read, indices, total = self._compiled[given]
        flat: list[Any] = []
        for a in arguments:  # private values (B7) come as one object
            flat += a if isinstance(a, list) else a.tensors() if hasattr(a, "tensors") else [a]
        gradients: list[torch.Tensor | None] = [None] * total
        if call is not None:
            given_values = [flat[i] for i in read]
            with torch._C._DisableAutocast():
                results = (
                    call(given_values)
                    if getattr(call, "takes_list", False)
                    else call(*given_values)
                )
            for index, gradient in zip(indices, results, strict=True):
                gradients[index] = gradient
        return gradients

    def reads(self, given: int) -> set[str]:
        """Names of the inputs that the gradients of these tangents are computed from."""
        graph, _, _ = _reduce(_copy(self._graph), self._count, given)
        return {node.name for node in graph.find_nodes(op="placeholder") if node.users}


def _copy(graph: torch.fx.Graph) -> PlainGraph:
    """A copy without donated inputs: this path does not check who else references them."""
    copy = PlainGraph()
    copy.output(copy.graph_copy(graph, {}))
    for node in copy.find_nodes(op="placeholder"):
        node.meta.pop("donated", None)
    return copy


def _remove_unread(graph: PlainGraph) -> list[int]:
    """Removes tensor inputs that nothing reads, which a call may lack; the positions of the others.

    Numbers stay: shapes mention them.
    """
    read = []
    for i, node in enumerate(graph.find_nodes(op="placeholder")):
        if node.users or not isinstance(node.meta.get("val"), torch.Tensor):
            read.append(i)
        else:
            graph.erase_node(node)
    return read


def _reduce(graph: PlainGraph, count: int, given: int) -> tuple[PlainGraph, list[int], int]:
    """Removes what depends only on absent tangents. Returns the graph, the indices of the remaining
    gradients, and the number of all gradients.
    """
    nodes = _calls(graph)
    masks = tangent_masks(nodes, graph.find_nodes(op="placeholder")[-count:])

    def is_absent(value: Any) -> bool:
        mask = masks.get(value, 0) if isinstance(value, torch.fx.Node) else 0
        return mask != 0 and not mask & given

    for node in nodes:
        absent = [a for a in node.all_input_nodes if is_absent(a)]
        if not absent or not masks[node] & given:
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
    indices = [i for i, g in enumerate(gradients) if not is_absent(g)]
    output.args = (tuple(gradients[i] for i in indices),)
    remove_dead(graph)
    return graph, indices, len(gradients)


def _zeros_like(graph: PlainGraph, operand: torch.fx.Node) -> torch.fx.Node:
    """Zeros in the layout of the operand; they don't depend on it if its sizes are static."""
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
    """The other operand of a sum whose one operand is absent, in the layout of the sum."""
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
    if is_laid_out_alike(rest, node):
        return rest
    expected = node.meta["val"]
    key, expected_key = layout_key(rest.meta["val"]), layout_key(expected)
    without_strides = slice(len(expected_key) - expected.dim() - 1)
    if key[without_strides] != expected_key[without_strides] or not expected.is_contiguous():
        return None
    copy = graph.call_function(
        aten.clone.default, (rest,), {"memory_format": torch.contiguous_format}
    )
    copy.meta = dict(node.meta)
    return copy
