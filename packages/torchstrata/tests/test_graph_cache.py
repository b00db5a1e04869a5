"""Which captured graphs have an entry in the cache."""

from __future__ import annotations

import bytecode_dynamo
import pytest
import torch
import torchstrata
from loopir import ArtifactStore, Undescribed, explain_last_miss
from torchstrata.api import Stack
from torchstrata.extensions import Extensions
from torchstrata.graph_cache import _check_calls


def test_calls_of_torch_are_described():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_method("add", (graph.call_function(torch.sin, (x,)), 1)))
    _check_calls(torch.fx.GraphModule(torch.nn.Module(), graph))


def test_modules_are_not():
    module = torch.nn.Module()
    module.part = torch.nn.ReLU()
    graph = torch.fx.Graph()
    graph.output(graph.call_module("part", (graph.placeholder("x"),)))
    with pytest.raises(Undescribed):
        _check_calls(torch.fx.GraphModule(module, graph))


def halves(x, w):
    """Assumes that the rows are even, and makes constants."""
    y = (x @ w + torch.tensor([1.0, 2.0, 3.0, 4.0])).relu() * torch.arange(100)[:4]
    return y.unflatten(0, (2, -1)).sum(0), y[x.shape[0] // 2 :]


def step(tmp_path, rows):
    """Results and gradient, what was assumed of sizes, and hits and misses of the cache."""
    options = {"verify": False, "cache_dir": str(tmp_path)}
    found = []
    stack = Stack(torchstrata.config.with_options(options), True, Extensions())
    captured = bytecode_dynamo.optimize(stack, dynamic=True, on_capture=found.append)(halves)
    before = dict(torchstrata.counters)
    torch.manual_seed(0)
    x, w = torch.randn(rows, 4), torch.randn(4, 4, requires_grad=True)
    results = captured(x, w)
    for got, expected in zip(results, halves(x, w)):
        torch.testing.assert_close(got, expected)
    (gradient,) = torch.autograd.grad(sum(r.sum() for r in results), w)
    counts = [torchstrata.counters[k] - before[k] for k in ("cache_hits", "cache_misses")]
    guards = sorted(map(str, found[0].shapes.guards))
    return [*results, gradient], guards, counts


def test_symbolic_sizes_and_constants_are_kept(tmp_path):
    cold, assumed, (hits, misses) = step(tmp_path, 6)
    assert misses and any("% 2" in guard for guard in assumed)
    warm, again, (hits, misses) = step(tmp_path, 6)
    assert hits and not misses and again == assumed
    for a, b in zip(cold, warm):
        assert torch.equal(a, b)


def test_the_last_miss_is_explained(tmp_path):
    store = ArtifactStore(tmp_path)
    assert "no lookup" in explain_last_miss(store)
    step(tmp_path, 6)
    assert "no other captured graph" in explain_last_miss(store)
    step(tmp_path, 8)
    text = explain_last_miss(store)
    assert "nearest is" in text and "\ngraph " in text and "settings" not in text
    torch.set_num_threads(threads := torch.get_num_threads() + 1)
    try:
        step(tmp_path, 8)
    finally:
        torch.set_num_threads(threads - 1)
    assert "state of torch" in explain_last_miss(store)
