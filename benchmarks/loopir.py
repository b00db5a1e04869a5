"""What loopir makes of graphs: compile time by graph size, kernels and memory by model, next to the incumbent's kernel counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import aotgrad
import bytecode_dynamo
import loopir
import primops
import torch

from integration_tests.models.zoo import GPT, ZOO, Entry
from loopir.testing import EvaluatorCodeGenerator

MODELS = ("mlp", "resnet18", "unet", "gpt", "encoder", "lstm", "dlrm")


def functional_graphs(model: torch.nn.Module, inputs: Sequence[Any], training: bool) -> dict[str, torch.fx.GraphModule]:
    """The functional graphs (C2) of one step, by direction."""
    graphs: dict[str, torch.fx.GraphModule] = {}

    def keep(direction: str) -> Callable:
        def compile_(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable:
            graphs[direction] = graph
            return lambda *args: graph(*args)

        return compile_

    backend = aotgrad.aot_backend(keep("forward"), keep("backward"), inference_compiler=keep("inference"))
    bytecode_dynamo.reset()
    compiled = bytecode_dynamo.optimize(backend)(model)
    if training:
        model.train()
        compiled(*inputs).sum().backward()
    else:
        with torch.no_grad():
            model.eval()
            compiled(*inputs)
    return graphs


def lowering_seconds(graphs: Sequence[torch.fx.GraphModule]) -> tuple[int, float]:
    """Nodes and the seconds for lowering and scheduling them, decomposition not counted."""
    prims = [primops.decompose(graph) for graph in graphs]
    started = time.perf_counter()
    for graph in prims:
        loopir.schedule(loopir.lower(graph))
    return sum(len(graph.graph.nodes) for graph in prims), time.perf_counter() - started


def gpt_training_graph() -> dict[str, Any]:
    """Seconds for lowering and scheduling forward and backward of a 12-layer GPT."""
    model = GPT(width=64, heads=4, layers=12)
    graphs = functional_graphs(model, (torch.randint(100, (2, 16)),), training=True)
    nodes, seconds = lowering_seconds(list(graphs.values()))
    return {"prim nodes": nodes, "s": round(seconds, 2)}


def graph_of_size(count: int) -> torch.fx.GraphModule:
    """A prim graph of about ``count`` nodes: blocks of pointwise operations, a reduction and a product."""
    from primops.testing import trace

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
        started = time.perf_counter()
        loopir.schedule(loopir.lower(graph))
        row[f"{len(graph.graph.nodes)} nodes"] = f"{time.perf_counter() - started:.2f} s"
    return row


CASES = [scaling, gpt_training_graph]
