"""What loopir makes of graphs: seconds by graph size; kernels, bytes and memory by model next to the incumbent's kernels."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import aotgrad
import bytecode_dynamo
import loopir
import primops
import torch
from loopir.program import Launch
from loopir.runs import RunStep, cut_runs, peak_bytes
from primops.testing import trace

from integration_tests.models.zoo import GPT, ZOO, Entry


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
    started = time.process_time()
    for graph in prims:
        loopir.schedule(loopir.lower(graph))
    return sum(len(graph.graph.nodes) for graph in prims), time.process_time() - started


def gpt_training_graph() -> dict[str, Any]:
    """Seconds for lowering and scheduling forward and backward of a 12-layer GPT."""
    model = GPT(width=64, heads=4, layers=12)
    graphs = functional_graphs(model, (torch.randint(100, (2, 16)),), training=True)
    nodes, seconds = lowering_seconds(list(graphs.values()))
    return {"prim nodes": nodes, "s": round(seconds, 2)}


def graph_of_size(count: int) -> torch.fx.GraphModule:
    """A prim graph of about ``count`` nodes: blocks of pointwise operations, a reduction and a product."""

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


def kernels_of(graphs: Sequence[torch.fx.GraphModule], inference: bool) -> dict[str, int]:
    """Launches, calls of generated code (runs of launches are one), bytes read and written by kernels, planned peak."""
    options = loopir.Options(inference=inference)
    row = dict.fromkeys(("launches", "calls", "KiB moved", "planned peak KiB"), 0)
    for graph in graphs:
        prims = primops.decompose(loopir.rewrite_patterns(graph, None, options))
        program = loopir.schedule(loopir.lower(prims, options), options)
        linked = cut_runs(program, ["cpu"])
        row["launches"] += program.launch_count
        row["calls"] += sum(isinstance(step, RunStep) for step in linked.steps)
        for step in program.steps:
            if isinstance(step, Launch):
                buffers = program.kernels[step.kernel].buffers
                row["KiB moved"] += sum(int(b.numel) * b.dtype.itemsize for b in buffers) >> 10
        row["planned peak KiB"] = max(row["planned peak KiB"], peak_bytes(program, linked) >> 10)
    return row


def incumbent_kernels(entry: Entry, inputs: tuple, training: bool) -> int:
    """Calls of generated functions in what torch.compile generates."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    model = torch.compile(entry.build().train(training))
    with torch.set_grad_enabled(training):
        step = (lambda: model(*inputs).sum().backward()) if training else (lambda: model(*inputs))
        _, codes = run_and_get_code(step)
    return sum(len(re.findall(r"^\s+(?:cpp_fused\w*|triton_\w+\.run)\(", code, re.MULTILINE)) for code in codes)


def model_case(entry: Entry, training: bool) -> Callable[[], dict[str, Any]]:
    """One row: a model of the zoo at batch size 4."""

    def case() -> dict[str, Any]:
        torch.manual_seed(0)
        inputs = entry.inputs(4)
        row = kernels_of(list(functional_graphs(entry.build(), inputs, training).values()), not training)
        return {**row, "torch.compile calls": incumbent_kernels(entry, inputs, training)}

    case.__name__ = f"{entry.name}_{'training' if training else 'inference'}"
    return case


CASES: list[Callable[[], dict[str, Any]]] = [scaling, gpt_training_graph]
CASES += [model_case(entry, training) for entry in ZOO if entry.graphs == 1 for training in (False, True)]
