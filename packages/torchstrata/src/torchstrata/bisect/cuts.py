"""Parts of a graph as graphs of their own, with the values that enter them as inputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import primops
import torch
from symshapes import LazyGraphModule
from torch.fx import Graph, GraphModule, Node

from .evaluate import run_graph

NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True, slots=True)
class Part:
    """A graph with the real values of its inputs."""

    graph: GraphModule
    inputs: tuple[Any, ...]

    @property
    def calls(self) -> list[Node]:
        """The nodes that compute something."""
        return [node for node in self.graph.graph.nodes if node.op.startswith("call")]


class Values:
    """The values of all nodes of a graph on real inputs, and parts of the graph."""

    def __init__(self, source: str, part: Part) -> None:
        self.source, self.gm = source, part.graph
        self.nodes: list[Node] = [*part.graph.graph.nodes]
        self.values: dict[Node, Any] = {}
        with torch.no_grad() if source != "captured" else torch.enable_grad():
            self._run(part)

    def _run(self, part: Part) -> None:
        def keep(node: Node, value: Any) -> None:
            self.values[node] = _kept(value)

        inputs = [_kept(x) for x in part.inputs]
        if self.source == "prims":
            primops.evaluate(part.graph, inputs, on_node=keep)
        else:
            run_graph(part.graph, inputs, on_node=keep)

    @property
    def calls(self) -> list[Node]:
        """The nodes that compute something."""
        return [node for node in self.nodes if node.op.startswith("call")]

    def part(self, inside: Collection[Node], results: Sequence[Node]) -> Part:
        """The nodes ``inside`` that ``results`` need, as a graph that returns ``results``.

        What they read from outside is an input. Inputs that are sizes stay.
        """
        needed = _needed(inside, results)
        graph, copies, inputs = Graph(), dict[Node, Node](), list[Any]()
        outside = {a for n in needed for a in n.all_input_nodes} - needed
        outside |= {r for r in results if r not in needed}
        for node in self.nodes:
            is_size = node.op == "placeholder" and isinstance(node.meta.get("val"), NUMBERS)
            if node.op == "get_attr" and node in outside:
                copies[node] = graph.node_copy(node)
            elif is_size or node in outside:
                copies[node] = self._placeholder(graph, node)
                inputs.append(self.values[node])
        for node in self.nodes:
            if node in needed:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        output = graph.output(tuple(copies[node] for node in results))
        output.meta = self._output_meta(results)
        return Part(LazyGraphModule(self.gm, graph), tuple(inputs))

    def _placeholder(self, graph: Graph, node: Node) -> Node:
        made = graph.placeholder(node.name)
        made.meta = {k: v for k, v in node.meta.items() if k in ("val", "source", "static")}
        if self.source == "captured":
            made.meta = {"source": node.name, "static": False, **made.meta}
        return made

    def _output_meta(self, results: Sequence[Node]) -> dict[str, Any]:
        if self.source == "captured":
            return {}
        return (
            {"val": tuple(node.meta.get("val") for node in results)}
            if self.source == "prims"
            else {}
        )


def _needed(inside: Collection[Node], results: Sequence[Node]) -> set[Node]:
    found: set[Node] = set()
    pending = [node for node in results if node in inside]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += [a for a in node.all_input_nodes if a in inside]
    return found


def _kept(value: Any) -> Any:
    """A value as an input of a part: a leaf of its own memory."""
    if isinstance(value, torch.Tensor):
        copied = value.detach().clone(memory_format=torch.preserve_format)
        return copied.requires_grad_(value.requires_grad)
    if isinstance(value, (tuple, list)):
        return (
            type(value)(map(_kept, value))
            if type(value) in (tuple, list)
            else tuple(map(_kept, value))
        )
    return value
