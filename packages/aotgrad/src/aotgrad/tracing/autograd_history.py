"""Autograd history that a trace does not see: the history of inputs, from before the call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class OuterHistory:
    """A differentiation inside a program that may pass through the histories of its inputs.

    Attributes:
        targets: inputs that the program differentiates with respect to.
        through: non-leaf inputs on which the differentiated values depend.
        line: the user's line that differentiates.
    """

    targets: frozenset[int]
    through: frozenset[int]
    line: str


def history(starts: Iterable[Any], known: Iterable[Any] = ()) -> set[Any]:
    """The autograd nodes that gradients of ``starts`` may reach, including the starts and the
    ``known`` nodes, at which they stop. Ignores None among the starts.
    """
    seen, stack = set(known), list(starts)
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack.extend(following for following, _ in node.next_functions)
    return seen


def reachable_leaves(starts: Iterable[Any], known: Iterable[Any]) -> set[Any]:
    """The nodes of leaves that gradients of ``starts`` reach without passing through a ``known``
    node.
    """
    known = set(known)
    return {node for node in history(starts, known) - known if hasattr(node, "variable")}


def history_of(outputs: Any) -> set[Any]:
    """The history of a tensor or gradient edge, or of a sequence of them."""
    is_single = isinstance(outputs, (torch.Tensor, torch.autograd.graph.GradientEdge))
    several = [outputs] if is_single else outputs
    return history(o.grad_fn if isinstance(o, torch.Tensor) else o.node for o in several)


Edges = Sequence[torch.autograd.graph.GradientEdge]


def _output_masks(edges: Edges, last: Iterable[Any] = ()) -> dict[Any, int]:
    """For each autograd node, the bits of the edges whose backward passes through it; backward
    stops at the ``last`` nodes.
    """
    last = set(last)
    behind: dict[Any, int] = {}
    stack: list[tuple[Any, int]] = [(edge.node, 1 << bit) for bit, edge in enumerate(edges)]
    while stack:
        node, bits = stack.pop()
        if node is not None and (known := behind.get(node, 0)) | bits != known:
            behind[node] = known | bits
            stack.extend(
                (following, known | bits)
                for following, _ in node.next_functions
                if node not in last
            )
    return behind


def freed_with(edges: Edges) -> tuple[int, ...]:
    """For each edge, the bits of the edges whose backward passes through the same node with saved
    values.
    """
    behind = _output_masks(edges)
    masks = {bits for node, bits in behind.items() if _saves_values(type(node))}
    return tuple(
        reduce(or_, (mask for mask in masks if mask >> bit & 1), 1 << bit)
        for bit in range(len(edges))
    )


def output_groups(
    edges: Edges, together: Sequence[int], inputs: Sequence[tuple[Any, bool]], *, by_history: bool
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Groups of edges that share no values, or lead to different histories, each with its inputs;
    empty if all edges form one group.

    Edges whose backward passes through a common node, which adds their gradients, stay in one group
    if they lead to the same histories.

    Args:
        edges: the edges of the results.
        together: the result of ``freed_with`` for them.
        inputs: for each input, the node at which its gradient arrives, and whether it is a leaf.
        by_history: whether to separate even edges that share values, if they lead to different
            histories.
    """
    ends = {node for node, _ in inputs}
    behind = _output_masks(edges, ends)
    reached = [behind.get(node, 0) for node, _ in inputs]
    groups: list[int] = []
    for bits in together:
        groups = [g for g in groups if not g & bits] + [
            reduce(or_, (g for g in groups if g & bits), bits)
        ]
    for shared in {bits for node, bits in behind.items() if node not in ends}:
        merged: dict[tuple[Any, ...], int] = {}
        for group in groups:
            histories = tuple(
                i for i, bits in enumerate(reached) if bits & group and not inputs[i][1]
            )
            key = (histories, ()) if group & shared else (histories, group)
            merged[key] = merged.get(key, 0) | group
        groups = [*merged.values()]
    if by_history:
        is_leaf = [is_leaf for _, is_leaf in inputs]
        groups = [part for group in groups for part in _split_by_history(group, reached, is_leaf)]
    if len(groups) < 2 or None in ends:
        return ()
    return tuple(
        (
            tuple(i for i in range(len(edges)) if g >> i & 1),
            tuple(i for i, bits in enumerate(reached) if bits & g),
        )
        for g in sorted(groups)
    )


def _split_by_history(group: int, reached: Sequence[int], is_leaf: Sequence[bool]) -> list[int]:
    """Splits the edges of a group by the histories that they lead to.

    Autograd passes through everything behind a node, and some of it may have been freed.
    """
    parts: dict[tuple[int, ...], int] = {}
    for bit in range(group.bit_length()):
        if group >> bit & 1:
            histories = tuple(
                i for i, bits in enumerate(reached) if bits >> bit & 1 and not is_leaf[i]
            )
            parts[histories] = parts.get(histories, 0) | 1 << bit
    return [*parts.values()]


@cache
def _saves_values(cls: type) -> bool:
    return any(name.startswith("_raw_saved") for name in dir(cls))


def depends_on_any(through: Iterable[torch.Tensor], targets: Iterable[torch.Tensor]) -> bool:
    """Whether one of the targets is in the history of a tensor of ``through``."""
    made = [t.grad_fn for t in through if t.grad_fn is not None]
    edges = [torch.autograd.graph.get_gradient_edge(t) for t in targets if made and t.requires_grad]
    before = history(node for f in made for node, _ in f.next_functions)
    return any(e.node in before for e in edges)
