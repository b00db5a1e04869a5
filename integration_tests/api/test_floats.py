"""Python floats that change from call to call are arguments of kernels."""

from __future__ import annotations

import bytecode_dynamo
import pytest
import torch
import torchstrata

FLOATS = (1.5, 2.5, 3.25, 0.7, 0.9)


@pytest.fixture(autouse=True)
def fresh():
    torchstrata.reset()


def graphs() -> int:
    assert torchstrata.counters["fallbacks"] == 0
    return torchstrata.counters["graphs"]


def test_one_graph_for_all_values():
    def program(x, s, t):
        return (
            x * s + t,
            x.clamp(-t, s),
            (s - x) / t,
            (x * s).to(torch.int32),
            torch.where(x > s, t, x),
            torch.full((2,), s * t),
            s,
        )

    compiled = torchstrata.compile(program)
    x = torch.rand(3, 5, requires_grad=True)
    for s in FLOATS:
        results, expected = compiled(x, s, s / 2), program(x, s, s / 2)
        torch.testing.assert_close(results, expected)
        gradients = (
            torch.autograd.grad(sum(r.sum() for r in rs[:3]), x) for rs in (results, expected)
        )
        torch.testing.assert_close(*gradients)
    assert graphs() == 2  # one for the first value


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_learning_rate_schedule(optimizer):
    def train(compile_step: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4)
        steps = optimizer(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(steps, 20)
        step = torchstrata.compile(steps.step) if compile_step else steps.step
        for _ in range(8):
            model(torch.randn(3, 8)).square().sum().backward()
            step()
            steps.zero_grad()
            schedule.step()
        return list(model.parameters())

    torch.testing.assert_close(train(compile_step=True), train(compile_step=False))
    assert graphs() <= 3


def test_a_number_of_a_tensor():
    def program(x):
        return x * x.sum().item()

    with bytecode_dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torchstrata.compile(program)
        for _ in range(3):
            x = torch.randn(4)
            torch.testing.assert_close(compiled(x), program(x))
    assert graphs() == 1


def test_a_library_call_gets_a_graph_per_value():
    def program(x, s):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, scale=s)

    compiled = torchstrata.compile(program)
    x = torch.randn(1, 2, 3, 4)
    for s in FLOATS[:3]:
        torch.testing.assert_close(compiled(x, s), program(x, s))
    assert graphs() == 3
