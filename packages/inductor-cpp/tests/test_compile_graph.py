"""The graph backend: ATen graphs in, results equal to eager."""

from __future__ import annotations

import torch
from inductor_cpp import compile_graph

aten = torch.ops.aten


def trace(function, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """An ATen graph; ``function(call, *nodes)`` builds it by calling ``call(op, *args)``."""
    graph = torch.fx.Graph()
    nodes = []
    for number, tensor in enumerate(inputs):
        node = graph.placeholder(f"arg{number}")
        node.meta["val"] = tensor
        nodes.append(node)

    def call(op, *args, **kwargs):
        node = graph.call_function(op, args, kwargs)
        node.meta["val"] = op(
            *[a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args], **kwargs
        )
        return node

    result = function(call, *nodes)
    graph.output((result,)).meta["val"] = (result.meta["val"],)
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def check(store, function, *inputs: torch.Tensor) -> None:
    gm = trace(function, *inputs)
    expected = (
        next(node for node in gm.graph.nodes if node.op == "output").args[0][0].meta["val"].clone()
    )
    (actual,) = compile_graph(gm, list(inputs), store=store)(*inputs)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-6)


def test_softmax_then_gelu_is_one_kernel(store):
    x, w = torch.randn(64, 128), torch.randn(128)
    shown: dict[str, str] = {}
    gm = trace(
        lambda c, x, w: c(
            aten.gelu.default, c(aten.mul.Tensor, c(aten._softmax.default, x, -1, False), w)
        ),
        x,
        w,
    )
    compiled = compile_graph(gm, [x, w], store=store, on_artifact=shown.__setitem__)
    (actual,) = compiled(x, w)
    torch.testing.assert_close(
        actual, torch.nn.functional.gelu(torch.softmax(x, -1) * w), rtol=2e-5, atol=2e-6
    )
    assert compiled.kernel_count == 1 and any("kernel0_units" in text for text in shown.values())


def test_reductions_views_and_broadcasts(store):
    check(
        store,
        lambda c, x: c(aten.sum.dim_IntList, c(aten.mul.Tensor, x, x), [0, 2]),
        torch.randn(5, 7, 9),
    )
    check(
        store,
        lambda c, x: c(aten.add.Tensor, c(aten.permute.default, x, [1, 0]), x),
        torch.randn(33, 33),
    )
    check(store, lambda c, x: c(aten.argmax.default, x, 1), torch.randn(6, 50))
    check(store, lambda c, x: c(aten.constant_pad_nd.default, x, [1, 2], 0.5), torch.randn(6, 50))


def test_embedding(store):
    check(
        store,
        lambda c, w, i: c(aten.embedding.default, w, i),
        torch.randn(20, 33),
        torch.randint(0, 20, (4, 6)),
    )
