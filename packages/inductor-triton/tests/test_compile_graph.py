"""The graph backend: ATen graphs in, results equal to eager, through the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from inductor_triton import compile_graph
from loopir import ArtifactStore

aten = torch.ops.aten


def traced(function: Callable, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """An ATen graph, which ``function(call, *nodes)`` builds with ``call(op, *args)``."""
    graph = torch.fx.Graph()
    nodes = []
    for number, tensor in enumerate(inputs):
        nodes.append(graph.placeholder(f"arg{number}"))
        nodes[-1].meta["val"] = tensor

    def call(op, *args):
        node = graph.call_function(op, args)
        node.meta["val"] = op(
            *[arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in args]
        )
        return node

    result = function(call, *nodes)
    graph.output((result,)).meta["val"] = (result.meta["val"],)
    return torch.fx.GraphModule(torch.nn.Module(), graph)


GRAPHS = {
    "softmax, gelu": lambda c, x, w: c(
        aten.gelu.default, c(aten.mul.Tensor, c(aten._softmax.default, x, -1, False), w)
    ),
    "transpose, add": lambda c, x, w: c(
        aten.add.Tensor, c(aten.permute.default, c(aten.exp.default, x), [1, 0]), 1.5
    ),
    "sum of all": lambda c, x, w: c(aten.sum.default, c(aten.mul.Tensor, x, x)),
    "argmax": lambda c, x, w: c(aten.argmax.default, x, 1),
    "pad": lambda c, x, w: c(aten.constant_pad_nd.default, x, [1, 2], 0.5),
    "cumsum": lambda c, x, w: c(aten.cumsum.default, c(aten.mul.Tensor, x, w), 1),
    "matmul": lambda c, x, w: c(aten.relu.default, c(aten.mm.default, x, c(aten.t.default, x))),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_equals_eager(tmp_path, name):
    pytest.importorskip("triton")
    inputs = [torch.randn(20, 33), torch.randn(33)]
    gm = traced(GRAPHS[name], *inputs)
    (expected,) = next(node for node in gm.graph.nodes if node.op == "output").meta["val"]
    compiled = compile_graph(gm, inputs, interpret=True, store=ArtifactStore(tmp_path))
    (actual,) = compiled(*inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_softmax_and_gelu_are_one_kernel(tmp_path):
    pytest.importorskip("triton")
    shown: dict[str, str] = {}
    inputs = [torch.randn(20, 33), torch.randn(33)]
    gm = traced(GRAPHS["softmax, gelu"], *inputs)
    compile_graph(
        gm, inputs, interpret=True, store=ArtifactStore(tmp_path), on_artifact=shown.__setitem__
    )
    (text,) = (text for name, text in shown.items() if "@triton.jit" in text)
    assert text.count("tl.program_id") == 1
