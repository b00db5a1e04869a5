"""Captured graphs with size symbols: traced once, run at several sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from aotgrad import aot_backend, check_functional, run_eager
from aotgrad.testing import capture_symbolically

F64 = torch.float64


def linear_relu(x, w, b):
    return (F.relu(F.linear(x, w, b)) / x.shape[0],)


def reshapes(x, w, b):
    y = F.linear(x, w, b)
    return y.view(-1, 2), y.reshape(x.shape[0] * 2, -1).sum(1), y.flatten()[: x.shape[0]]


def writes(x, w, b):
    b.add_(x.mean(0)[:4].detach())
    y = F.linear(x, w) + b
    y[1:].mul_(2)
    return y, y[0], y.view(-1)


def normalised(x, w, b):
    y = F.layer_norm(F.linear(x, w), (4,), b, b)
    return F.dropout(F.gelu(y), 0.3), torch.cat([y, y * y.shape[0]])


def halves(x, w, b):
    y = F.linear(x, w, b)
    n = x.shape[0] // 2
    return torch.cat([y[:n].exp(), y[n:] * n]), torch.arange(x.shape[0])


def views_of_input(x, w, b):
    return x.view(x.shape[0] * 2, 2)[1:], w.t(), b


def sizes(x, w, b):
    return x.shape[0] * 3 + 1, F.linear(x, w, b), x.numel()


def run(f, call, n, grad):
    torch.manual_seed(n)
    x = torch.randn(n, 4, dtype=F64, requires_grad=grad)
    w = torch.randn(4, 4, dtype=F64, requires_grad=grad)
    b = torch.randn(4, dtype=F64)
    torch.manual_seed(0)
    out = call(x, w, b)
    loss = sum(
        (o * torch.linspace(1, 2, o.numel()).view(o.shape)).sum()
        for o in out
        if isinstance(o, torch.Tensor) and o.requires_grad
    )
    if isinstance(loss, torch.Tensor):
        loss.backward()
    return out, x.grad, w.grad, b


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "f",
    [linear_relu, reshapes, writes, normalised, halves, views_of_input, sizes],
    ids=lambda f: f.__name__,
)
def test_one_trace_serves_three_sizes(f, grad):
    examples = [
        torch.randn(6, 4, dtype=F64, requires_grad=grad),
        torch.randn(4, 4, dtype=F64, requires_grad=grad),
        torch.randn(4, dtype=F64),
    ]
    gm = capture_symbolically(f, examples, {0: [0]})
    env = (
        next(n for n in gm.graph.nodes if n.meta.get("val") is not None and n.name == "x")
        .meta["val"]
        .fake_mode.shape_env
    )
    call = aot_backend(run_eager)(
        gm, [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    )
    assert [str(g).split("  #")[0] for g in env.input_guards()] == ["s0 >= 2"]
    for n in (6, 3, 11):
        ours = run(f, lambda *inputs, n=n: call(n, *inputs), n, grad)
        torch.testing.assert_close(ours, run(f, f, n, grad))


def test_graphs_bind_every_symbol():
    seen = []

    def compiler(gm, inputs):
        check_functional(gm)
        seen.append((gm, inputs))
        return gm.forward

    examples = [
        torch.randn(6, 4, requires_grad=True),
        torch.randn(4, 4, requires_grad=True),
        torch.randn(4),
    ]
    gm = capture_symbolically(reshapes, examples, {0: [0]})
    aot_backend(compiler)(gm, [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")])
    (_, forward_inputs), (backward, backward_inputs) = seen
    assert isinstance(forward_inputs[0], torch.SymInt)
    assert isinstance(backward_inputs[0], torch.SymInt)
    assert len(backward_inputs) == len(backward.graph.find_nodes(op="placeholder"))
    assert len(forward_inputs) == 4
