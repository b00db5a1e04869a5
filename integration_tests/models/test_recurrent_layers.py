"""GRUs and plain recurrent networks on the CPU: a call per layer, for every length."""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys

import pytest
import torch
import torchstrata
from torch import nn
from torch.func import jvp

KINDS = {
    "gru": (nn.GRU, {}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}
SETTINGS = (
    {"num_layers": 2, "batch_first": True},
    {"bidirectional": True, "bias": False},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
)
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def without_earlier_entries():
    """The tests compile one function for many networks."""
    torchstrata.reset()


def network(kind: str, **settings) -> nn.Module:
    torch.manual_seed(0)
    cls, more = KINDS[kind]
    return cls(5, 6, **more, **settings)


def train(model, x, state):
    out, end = model(x, state)
    loss = out.square().sum() + end.sin().sum()
    return out, end, *torch.autograd.grad(loss, [x, state, *model.parameters()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_results_and_gradients_are_eagers(kind, settings, dtype):
    model = network(kind, **settings).to(dtype)
    rows = settings.get("num_layers", 1) * (1 + settings.get("bidirectional", False))
    compiled = torchstrata.compile(train, fullgraph=True)
    graphs = torchstrata.counters["graphs"]
    for length in (3, 7, 4, 1):
        sizes = (4, length, 5) if settings.get("batch_first") else (length, 4, 5)
        x = torch.randn(sizes, dtype=dtype, requires_grad=True)
        state = torch.randn(rows, 4, 6, dtype=dtype)
        state = state.requires_grad_()
        expected, found = train(model, x, state), compiled(model, x, state)
        for mine, eagers in zip(found, expected, strict=True):
            limit = TOLERANCES[dtype] * max(1.0, float(eagers.abs().max()))
            torch.testing.assert_close(mine, eagers, rtol=0, atol=limit)
            assert mine.stride() == eagers.stride()
    assert torchstrata.counters["graphs"] - graphs <= 3  # one length of 1 is special


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_is_a_call_per_layer(kind):
    model = network(kind, num_layers=2, bidirectional=True)
    compiled = torchstrata.compile(model, fullgraph=True)
    calls = torchstrata.counters["extern_calls"]
    with torch.inference_mode():
        torch.testing.assert_close(compiled(torch.ones(50, 3, 5)), model(torch.ones(50, 3, 5)))
    assert torchstrata.counters["extern_calls"] - calls < 10


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives(kind):
    model = network(kind, bidirectional=True).double()

    def penalty(x):
        (grad,) = torch.autograd.grad(model(x)[0].sin().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), [x, *model.parameters()])

    x = torch.randn(4, 2, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(torchstrata.compile(penalty)(x), penalty(x))


@pytest.mark.parametrize("kind", KINDS)
def test_forward_mode(kind):
    model, x = network(kind), torch.randn(4, 2, 5)

    def derivative(x):
        return jvp(lambda x: model(x)[0], (x,), (torch.ones_like(x),))

    with torch.no_grad():
        torch.testing.assert_close(torchstrata.compile(derivative)(x), derivative(x))


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_is_eagers(kind):
    model, x = network(kind), torch.randn(4, 2, 5)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        torch.testing.assert_close(torchstrata.compile(model)(x), model(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("x", "state"),
    [((3, 2, 4), None), ((3, 2, 5), (1, 3, 6)), ((0, 2, 5), None), ((3, 2, 5), (3, 2, 6))],
)
def test_sizes_that_do_not_fit(x, state):
    def call(x, state):
        return torch.gru(x, state, weights, True, 1, 0.0, False, False, False)

    weights = [p.detach() for p in network("gru").parameters()]
    state = torch.zeros(state or (1, 2, 6))
    for run in (call, torchstrata.compile(call)):
        with pytest.raises(RuntimeError):
            run(torch.zeros(x), state)


LOADS = """
import sys, torch, torchstrata
model = torch.nn.GRU(5, 6, 2, batch_first=True)
model.load_state_dict(torch.load(sys.argv[2], weights_only=True))
x = torch.ones(2, 9, 5)
call = torchstrata.load(sys.argv[1], model)
assert torch.allclose(call(x)[0], model(x)[0], atol=1e-6)
call(x)[0].sum().backward()
assert "sympy" not in sys.modules
"""


def test_a_saved_network_runs_in_another_process(tmp_path):
    model = nn.GRU(5, 6, 2, batch_first=True)
    compiled = torchstrata.compile(model, options={"verify": False})
    compiled.precompile(torch.ones(2, 9, 5))
    torchstrata.save(compiled, tmp_path / "gru.strata")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    command = [sys.executable, "-W", "ignore", "-c", LOADS]
    files = [tmp_path / "gru.strata", tmp_path / "weights.pt"]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_passes_as_in_eager_mode(kind):
    model, state = network(kind), torch.zeros(1, 2, 6, requires_grad=True)
    x = torch.randn(4, 2, 5)
    x[1, 0, 2], x[2, 1, 3] = float("nan"), float("inf")
    expected = train(model, x.requires_grad_(), state)
    found = torchstrata.compile(train, fullgraph=True)(model, x, state)
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_copy_trains_alike():
    """Twenty steps of an optimiser, with lengths that change."""
    model = network("gru", num_layers=2)
    other = copy.deepcopy(model)
    compiled = torchstrata.compile(other, fullgraph=True)
    for run, parameters in ((model, model.parameters()), (compiled, other.parameters())):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for _, length in zip(range(20), itertools.cycle((3, 5, 8))):
            optimizer.zero_grad()
            run(torch.randn(length, 2, 5))[0].square().mean().backward()
            optimizer.step()
    for mine, theirs in zip(other.parameters(), model.parameters()):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
