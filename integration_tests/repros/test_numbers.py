"""Numbers that graphs take, compute and return: floats that change, items, negative bases."""

from __future__ import annotations

import bytecode_dynamo
import pytest
import torch
import torchstrata


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


def returned(x, f):
    return x * 2 + f, f * 3, min(0.5, 1 / (f**0.5)), max(f, x.numel() / 2)


def across_a_break(x, f):
    smaller, least = f**-0.8, min(0.1, 1 / f)
    norm = x.norm().item()
    return x * smaller * least + norm, smaller, least


def without_a_graph(x, f):
    smaller = f**-0.8
    bytecode_dynamo.graph_break()
    return x * smaller, smaller


@pytest.mark.parametrize("function", [returned, across_a_break, without_a_graph])
@pytest.mark.parametrize("backend", ["torchstrata", "eager"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_floats_that_change_come_back_as_floats(function, backend, dynamic):
    compiled = torchstrata.compile(function, backend=backend, dynamic=dynamic)
    for f in (1.0, 2.0, 3.0, 5.5):
        x = torch.randn(3)
        result, expected = compiled(x, f), function(x, f)
        torch.testing.assert_close(result[0], expected[0])
        assert [(type(v), v) for v in result[1:]] == [(type(v), v) for v in expected[1:]]


def test_a_float_of_an_attribute_stays_a_float():
    settings = {"rate": 1.0}

    def decay(x):
        settings["rate"] = settings["rate"] * 0.5
        return x * settings["rate"]

    compiled = torchstrata.compile(decay, fullgraph=True)
    for step in range(1, 5):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 0.5**step))
        assert type(settings["rate"]) is float


@pytest.mark.parametrize("read", [torch.Tensor.sum, torch.Tensor.argmax])
def test_items_in_a_graph(read):
    def scaled(x):
        value = read(x).item()
        return x * value, value, value * 2

    with bytecode_dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torchstrata.compile(scaled, fullgraph=True)
        for x in (torch.tensor([1.0, 3.0, 2.0]), torch.tensor([5.0, 1.0, 7.0])):
            result, expected = compiled(x), scaled(x)
            torch.testing.assert_close(result[0], expected[0])
            assert result[1:] == expected[1:] and type(result[1]) is type(expected[1])


@pytest.mark.parametrize("base", [-2, -2.5])
@pytest.mark.parametrize("backend", ["torchstrata", "eager"])
def test_a_negative_base(base, backend):
    x = torch.tensor([0, 1, 2, 3])
    compiled = torchstrata.compile(lambda x: base**x, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x), base**x)


def test_adafactor_steps():
    def losses(wrap):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 4)
        optimizer = torch.optim.Adafactor(layer.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        call = wrap(step)
        return torch.stack([call(torch.randn(5, 3)) for _ in range(4)])

    torch.testing.assert_close(losses(torchstrata.compile), losses(lambda f: f))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_numbers_that_nobody_reads_are_drawn(requires_grad):
    def last(x):
        torch.rand(3), torch.empty(2).normal_(), torch.nn.functional.dropout(x)
        return torch.rand(3) + x

    x = torch.zeros(3, requires_grad=requires_grad)
    compiled = torchstrata.compile(last, fullgraph=True, options={"fallback_random": True})
    results = []
    for call in (last, compiled):
        torch.manual_seed(0)
        results.append((call(x), torch.rand(1)))
    torch.testing.assert_close(*results)
