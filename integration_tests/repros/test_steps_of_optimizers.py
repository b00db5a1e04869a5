"""Fused steps of optimizers, and flags that a program sets on its inputs, in one graph."""

from __future__ import annotations

import pytest
import torch
import torchstrata

from .outcome import outcome


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "adam by a rate in a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
    "sgd by a rate in a tensor": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_steps(name):
    results = []
    for wrap in (lambda f: f, lambda f: torchstrata.compile(f, fullgraph=True)):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 4)
        optimizer = OPTIMIZERS[name](layer.parameters())

        @wrap
        def step(x, layer=layer, optimizer=optimizer):
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        losses, parameters = [step(torch.randn(5, 3)) for _ in range(3)], [*layer.parameters()]
        results.append((losses, parameters, [p._version for p in parameters]))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_an_input_begins_to_require_gradients(backend):
    def slope(x):
        before = x * 2
        x.requires_grad_()
        loss = (x**3).sum()
        loss.backward()
        return before, x.grad, x * 5

    compiled = torchstrata.compile(slope, backend=backend, fullgraph=True)
    results = []
    for call in (slope, compiled):
        x = torch.arange(3.0)
        before, gradient, after = call(x)
        assert x.requires_grad and after.requires_grad and not before.requires_grad
        results.append((before, gradient, after))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_parameters_are_frozen_inside(backend):
    def frozen(layer, x):
        for parameter in layer.parameters():
            parameter.requires_grad_(False)
        return layer(x).sum()

    compiled, layer = (
        torchstrata.compile(frozen, backend=backend, fullgraph=True),
        torch.nn.Linear(3, 2),
    )
    x = torch.ones(4, 3, requires_grad=True)
    compiled(layer, x).backward()
    assert not any(p.requires_grad or p.grad is not None for p in layer.parameters())
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(4, 3))


@pytest.mark.parametrize("value", [1.0, float("inf"), float("nan")])
def test_gradients_of_a_scaled_loss(value):
    def unscale(gradients, found, inverse):
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        return found

    results = []
    for call in (unscale, torchstrata.compile(unscale, fullgraph=True)):
        gradients = [torch.linspace(-1, 1, 6).reshape(2, 3), torch.full((), value)]
        results.append((call(gradients, torch.zeros(1), torch.full((1,), 0.25)), gradients))
    torch.testing.assert_close(*results, equal_nan=True)


MANY = {
    "SGD": lambda: torch.optim.SGD(
        [torch.full((2,), float(n), requires_grad=True) for n in range(350)], momentum=0.9
    ),
    "AdamW": lambda: torch.optim.AdamW(
        [torch.full((2,), float(n), requires_grad=True) for n in range(300)], foreach=True
    ),
}
KINDS = [
    ("SGD", "eager"),
    ("SGD", "torchstrata"),
    pytest.param("AdamW", "torchstrata", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "backend"), KINDS)
def test_many_parameters(name, backend):
    """More arguments than ctypes passes, and than a call of CPython 3.11 can have: it crashed when
    it was specialised.
    """
    results = []
    for wrap in (lambda f: f, lambda f: torchstrata.compile(f, fullgraph=True, backend=backend)):
        optimizer = MANY[name]()
        parameters = optimizer.param_groups[0]["params"]
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
        step = wrap(lambda optimizer=optimizer: optimizer.step())
        for _ in range(12):
            step()
        results.append(torch.stack([p.detach() for p in parameters]))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("rows", [1, 3])
def test_many_operands_in_one_tensor(rows):
    """AdamW's step numbers: a kernel that selects from hundreds took minutes to compile."""

    def function(*parts):
        return torch.cat(parts).sqrt() + 1, torch.stack(parts).sum(1)

    parts = [torch.full((rows,), float(n)) for n in range(100)]
    torchstrata.reset()
    for found, expected in zip(
        torchstrata.compile(function, fullgraph=True)(*parts), function(*parts)
    ):
        torch.testing.assert_close(found, expected)


def test_a_part_of_an_input_is_written_with_a_history():
    """A graph with calls that the host makes took the input for one that begins to require
    gradients.
    """

    def function(x, v, k):
        y = torch.full_like(x, 2) * v[k[0]]
        x.narrow(0, 0, 1).copy_(y[:1])
        return x.sum()

    gradients = []
    for call in (function, torchstrata.compile(function)):
        v = torch.arange(4.0, requires_grad=True)
        call(torch.ones(3, 4), v, torch.tensor([2, 1])).backward()
        gradients.append(v.grad)
    torch.testing.assert_close(*gradients)


def _layer_after(make, wrap, steps=3):
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2).to(torch.bfloat16))
    optimizer = make([*layer.parameters()])
    step = wrap(lambda: optimizer.step())
    for _ in range(steps):
        for p in layer.parameters():
            p.grad = torch.randn_like(p)
        step()
    return [*layer.parameters()]


@pytest.mark.parametrize("name", ["Adafactor", "AdamW", "SGD"])
def test_parameters_of_two_dtypes_in_one_graph(name):
    """Also by Adafactor, whose Python computes with norms that it reads."""

    def make(parameters):
        options = {"momentum": 0.9} if name == "SGD" else {}
        return getattr(torch.optim, name)(parameters, lr=0.1, foreach=True, **options)

    torch.testing.assert_close(
        _layer_after(make, torchstrata.compile), _layer_after(make, lambda f: f)
    )
    assert not torchstrata.counters["graph_breaks"] and torchstrata.counters["graphs"] <= 2


def test_sparse_steps_run_eagerly():
    def step(wrap):
        torch.manual_seed(0)
        table = torch.nn.Embedding(9, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
        call = wrap(lambda: optimizer.step())
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.randint(9, (5,))).square().sum().backward()
            call()
        return table.weight

    torch.testing.assert_close(step(torchstrata.compile), step(lambda f: f))
    assert torchstrata.counters["graphs"] == torchstrata.counters["fallbacks"] == 0


def test_a_line_search_runs_eagerly_around_its_closure():
    def step(wrap):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 1)
        optimizer = torch.optim.LBFGS(layer.parameters(), line_search_fn="strong_wolfe")
        x = torch.randn(8, 3)

        def closure():
            optimizer.zero_grad()
            loss = (layer(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        call = wrap(lambda: optimizer.step(closure))
        return [call().detach() for _ in range(3)], layer.weight

    torch.testing.assert_close(step(torchstrata.compile), step(lambda f: f), atol=1e-5, rtol=1e-3)
    assert not torchstrata.counters["fallbacks"]


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_steps_before_an_operator_that_fails(backend):
    """Beside an input with a history, a graph with ``backward()`` inside did not run again: the
    steps were half lost.
    """

    def function(p, optimizer, x, y, k):
        for _ in range(2):
            optimizer.zero_grad()
            (p * x).sum().backward()
            optimizer.step()
            x = x + p.detach()
        y[k] = 0.5

    torchstrata.reset()
    found = []
    for call in (function, torchstrata.compile(function, backend=backend)):
        p = torch.nn.Parameter(torch.ones(4))
        optimizer, states = torch.optim.SGD([p], lr=0.1, momentum=0.5), []
        for last in (7, 7, 1, 7):
            y = torch.ones(3, 4, requires_grad=True) * 2
            raised = outcome(call, p, optimizer, torch.ones(3, 4), y, torch.tensor([0, last]))
            held = (y, p, p.grad, optimizer.state[p]["momentum_buffer"])
            states.append((raised is IndexError, [t.detach().clone() for t in held]))
        found.append(states)
    assert [failed for failed, _ in found[1]] == [True, True, False, True]
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", ["RAdam", "ASGD"])
@pytest.mark.parametrize("foreach", [False, True])
def test_numbers_of_steps_in_double_precision(name, foreach):
    """The number of steps was converted to what it was already, and counted twice."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torchstrata.reset()
        found = []
        for wrap in (lambda step: step, torchstrata.compile):
            p = torch.nn.Parameter(torch.ones(4))
            p.grad = torch.arange(4.0)
            optimizer = getattr(torch.optim, name)([p], foreach=foreach)
            step = wrap(lambda optimizer=optimizer: optimizer.step())
            for _ in range(8):
                step()
            found.append((p, optimizer.state[p]["step"]))
        torch.testing.assert_close(found[1], found[0])
        assert not torchstrata.counters["graph_breaks"]
    finally:
        torch.set_default_dtype(before)
