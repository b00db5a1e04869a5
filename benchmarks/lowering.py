"""Seconds for lowering and scheduling by graph size; what comes out, by model, is counted in
kernel_counts.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import loopir
import primops
import torch
from primops.testing import trace

from benchmarks.kernel_counts import functional_graphs
from integration_tests.models.zoo import GPT


def lowering_seconds(graphs: Sequence[torch.fx.GraphModule]) -> tuple[int, float]:
    """Nodes and the seconds for lowering and scheduling them, decomposition not counted."""
    prims = [primops.decompose(graph) for graph in graphs]
    started = time.process_time()
    for graph in prims:
        loopir.schedule(loopir.lower(graph))
    return sum(len(graph.graph.nodes) for graph in prims), time.process_time() - started


def gpt_training_graph() -> dict[str, Any]:
    """Seconds for lowering and scheduling forward and backward of a 12-layer GPT."""
    model = GPT(width=64, heads=4, layers=12)
    nodes, seconds = lowering_seconds(
        functional_graphs(model, (torch.randint(100, (2, 16)),), training=True)
    )
    return {"prim nodes": nodes, "s": round(seconds, 2)}


def graph_of_size(count: int) -> torch.fx.GraphModule:
    """A prim graph of about ``count`` nodes: blocks of pointwise operations, a reduction and a
    product.
    """

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(count // 25):
            y = torch.nn.functional.layer_norm(x, (16,))
            x = x + torch.tanh(y @ w) * torch.sigmoid(y) + y.sum(1, keepdim=True)
        return x

    return primops.decompose(trace(program, torch.randn(8, 16), torch.randn(16, 16)))


def scaling() -> dict[str, Any]:
    """Seconds for lowering and scheduling by number of nodes."""
    row: dict[str, Any] = {}
    for count in (500, 1000, 2500, 5000):
        graph = graph_of_size(count)
        started = time.process_time()
        loopir.schedule(loopir.lower(graph))
        row[f"{len(graph.graph.nodes)} nodes"] = f"{time.process_time() - started:.2f} s"
    return row


CASES: list[Callable[[], dict[str, Any]]] = [scaling, gpt_training_graph]
