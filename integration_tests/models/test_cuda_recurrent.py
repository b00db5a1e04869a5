"""Recurrent networks on CUDA devices are one call of cuDNN, as in eager mode."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torchstrata
from torch import nn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def _train(network, x, state):
    x = x.clone().requires_grad_(x.is_floating_point())
    states = [s.clone().requires_grad_() for s in state]
    given = (tuple(states) if isinstance(network, nn.LSTM) else states[0]) if states else None
    out, _ = network(x, given)
    grads = torch.autograd.grad(out.float().square().mean(), [x, *states, *network.parameters()])
    return out, *grads


def _differing(found, expected, dtype):
    """Positions of tensors that differ by more than the dtype explains, with errors and sizes."""
    pairs = [((a - b).abs().max(), b.abs().max()) for a, b in zip(found, expected, strict=True)]
    return [
        (i, float(error), float(size))
        for i, (error, size) in enumerate(pairs)
        if not error <= TOLERANCES[dtype] * size
    ]


TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-3, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (nn.LSTM, {"num_layers": 2, "batch_first": True}),
        (nn.LSTM, {"bidirectional": True, "bias": False}),
        (nn.LSTM, {"proj_size": 16}),
        (nn.GRU, {"num_layers": 2, "bidirectional": True}),
        (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
        (nn.RNN, {}),
    ],
)
def test_gradients_are_eagers(kind, settings, dtype):
    network = kind(32, 48, **settings).to("cuda", dtype)
    compiled = torchstrata.compile(_train, fullgraph=True)
    x = torch.randn(7, 5, 32, device="cuda", dtype=dtype)
    rows = settings.get("num_layers", 1) * (1 + settings.get("bidirectional", False))
    batch = 7 if settings.get("batch_first") else 5
    hidden = settings.get("proj_size", 48)
    state = [torch.randn(rows, batch, width, device="cuda", dtype=dtype) for width in (hidden, 48)]
    state = state if kind is nn.LSTM else state[1:]
    for given in ([], state):
        expected = _train(network, x, given)
        assert not _differing(_train(network, x, given), expected, dtype), "eager repeats itself"
        for call in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # cuDNN warns of weights in several pieces
                found = compiled(network, x, given)
            assert not _differing(found, expected, dtype), f"call {call} with {len(given)} states"
            assert found[0].stride() == expected[0].stride()


@pytest.mark.parametrize("is_flat", [True, False])
def test_weights_may_lie_apart(is_flat):
    network = nn.LSTM(16, 16, 2).cuda()
    if not is_flat:
        for name, parameter in list(network.named_parameters()):
            setattr(network, name, nn.Parameter(parameter.detach().clone()))
    expected = copy.deepcopy(network)
    x = torch.randn(4, 3, 16, device="cuda")
    compiled = torchstrata.compile(network, fullgraph=True)
    before = torchstrata.counters["generated_kernels"]
    for run in (compiled, expected):
        run(x)[0].sum().backward()
    assert torchstrata.counters["generated_kernels"] - before < 8
    for a, b in zip(network.parameters(), expected.parameters()):
        torch.testing.assert_close(a.grad, b.grad)


def test_backward_may_run_twice():
    network, x = nn.GRU(16, 16).cuda(), torch.randn(4, 3, 16, device="cuda", requires_grad=True)
    out = torchstrata.compile(network, fullgraph=True)(x)[0].sum()
    first = torch.autograd.grad(out, x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(out, x), first)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_autocast(kind, dtype):
    """Eager mode computes in float16 in any case."""
    network, x = kind(16, 16, 2).cuda(), torch.randn(4, 3, 16, device="cuda")
    compiled = torchstrata.compile(network, fullgraph=True)
    with torch.autocast("cuda", dtype):
        found, expected = compiled(x), network(x)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


def test_dropout_between_layers():
    network, x = nn.LSTM(64, 64, 2, dropout=0.5).cuda(), torch.ones(4, 3, 64, device="cuda")
    compiled = torchstrata.compile(network, fullgraph=True)
    torch.manual_seed(0)
    first, second = compiled(x)[0], compiled(x)[0]
    assert not torch.equal(first, second)
    network.eval()
    torch.testing.assert_close(compiled(x), network(x))


def test_lengths_become_symbolic():
    network = nn.LSTM(16, 16, batch_first=True).cuda()
    compiled, before = torchstrata.compile(network, fullgraph=True), torchstrata.counters["graphs"]
    with torch.no_grad():
        for length in range(3, 12):
            x = torch.randn(2, length, 16, device="cuda")
            torch.testing.assert_close(compiled(x), network(x))
    assert torchstrata.counters["graphs"] - before <= 2
