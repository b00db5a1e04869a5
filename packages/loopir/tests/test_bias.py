"""Biases that leave convolutions, and attention that stays written out, give the same values."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from loopir import Options, compile_graph
from loopir.patterns.bias import part_biases
from loopir.patterns.match import keep_outputs, name_of
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace

aten = torch.ops.aten
IMAGE, WEIGHT, BIAS = (2, 4, 6, 5), (8, 4, 3, 3), (8,)


def gradients(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    one = [1, 1]
    return aten.convolution_backward(
        g, x, w, [8], one, one, one, False, [0, 0], 1, [True, True, True]
    )


CASES = {
    "bias": (lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(), (IMAGE, WEIGHT, BIAS), 1),
    "transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2),
        (IMAGE, (4, 8, 3, 3), BIAS),
        1,
    ),
    "one dim": (lambda x, w, b: F.conv1d(x, w, b), ((2, 4, 6), (8, 4, 3), BIAS), 1),
    "none": (lambda x, w: F.conv2d(x, w).relu(), (IMAGE, WEIGHT), 0),
    "gradients": (gradients, ((2, 8, 6, 5), IMAGE, WEIGHT), 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: torch.dtype) -> None:
    function, shapes, count = CASES[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    with torch.no_grad():
        graph, expected = trace(function, *inputs), function(*inputs)
    keep_outputs(graph)
    assert part_biases(graph, "cuda") == 0
    assert part_biases(graph, "cpu") == count
    for node in graph.graph.nodes:
        assert name_of(node) != "convolution" or node.args[2] is None
        assert name_of(node) != "convolution_backward" or not node.args[-1][2]
    results = compile_graph(
        graph, inputs, codegens={"cpu": EvaluatorCodeGenerator()}, options=Options(check=True)
    )(*inputs)
    for result, wanted in zip(
        results, expected if isinstance(expected, tuple) else (expected,), strict=True
    ):
        torch.testing.assert_close(
            result,
            wanted,
            rtol=0.02 if dtype is torch.bfloat16 else 1e-4,
            atol=1e-2 if dtype is torch.bfloat16 else 1e-4,
        )
        assert result.stride() == wanted.stride()
