"""Calls that stand only in graphs which other tracers printed."""

from __future__ import annotations

import pytest
import torch
import torchstrata

X = torch.randn(4, 4)


def exported_with(context):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            with context():
                y = self.linear(y @ y)
            return y + x

    return torch.export.export(Model(), (X,), strict=False).module()


@pytest.mark.parametrize(
    "context",
    [lambda: torch.autocast("cpu", torch.bfloat16), torch.no_grad],
    ids=["autocast", "no_grad"],
)
def test_regions_of_exported_programs(context):
    program = exported_with(context)
    compiled = torchstrata.compile(program, fullgraph=True)
    result, expected = compiled(X), program(X)
    torch.testing.assert_close(result, expected)
    assert result.requires_grad == expected.requires_grad


def test_autocast_entered_without_a_block():
    def program(x):
        mode = torch.amp.autocast_mode._enter_autocast("cpu", torch.bfloat16, True, None)
        y = x @ x
        torch.amp.autocast_mode._exit_autocast(mode)
        return y, x @ x

    result, expected = torchstrata.compile(program, fullgraph=True)(X), program(X)
    torch.testing.assert_close(result, expected)
    assert result[0].dtype is torch.bfloat16


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.saved_tensors[0].cos()


def test_functions_of_autograd_in_graphs_of_torch_compile():
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    x = X.clone().requires_grad_()
    torch.compile(lambda x: Scaled.apply(x) * 2, backend=backend)(x)
    compiled = torchstrata.compile(graphs[0], fullgraph=True)
    gradients = []
    for call in (compiled, graphs[0]):
        gradients += torch.autograd.grad(call(x)[0].sum(), x)
    torch.testing.assert_close(*gradients)


def test_sizes_divided_by_torch():
    def program(x):
        parts = torch.div(4, 2, rounding_mode="trunc")
        more = torch.div(4, 4, rounding_mode="trunc") + 1
        return x.view(parts, 8) + x.new_zeros((more, 8))

    for _ in range(2):
        torchstrata.reset()
        result = torchstrata.compile(program, fullgraph=True)(X)
        torch.testing.assert_close(result, program(X))
        assert torchstrata.counters["graph_breaks"] == 0
