"""The least that must work on every Python and torch version."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import torch
import torchstrata


def test_function_equals_eager() -> None:
    def f(x, y):
        return (x * y + 1).relu().sum(dim=-1)

    x, y = torch.randn(5, 7), torch.randn(5, 7)
    torch.testing.assert_close(torchstrata.compile(f)(x, y), f(x, y))


def test_module_trains() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    compiled = torchstrata.compile(model)
    x = torch.randn(16, 4)
    expected = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    result = torch.autograd.grad(compiled(x).square().mean(), list(model.parameters()))
    torch.testing.assert_close(result, expected)


def test_break_and_resume_equal_eager() -> None:
    seen = []

    @torchstrata.compile
    def f(x):
        y = x * 2
        seen.append(float(y.sum()))
        if y.sum() > 0:
            return y + 1
        return y - 1

    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(f(x), x * 2 + x.sign())
    assert seen == [6.0, -6.0]


def test_incumbent_is_never_loaded() -> None:
    script = """
        import sys, torch, torchstrata
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.LayerNorm(4), torch.nn.GELU())
        compiled = torchstrata.compile(model)
        compiled(torch.randn(2, 4)).sum().backward()
        compiled(torch.randn(3, 4)).sum().backward()
        with torch.no_grad():
            compiled(torch.randn(2, 4))
        loaded = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
        assert not loaded, loaded
        assert torchstrata.counters["fallbacks"] == 0, torchstrata.counters
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
