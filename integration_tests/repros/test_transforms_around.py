"""Transforms of ``torch.func``, and what autograd does in batches, around and inside compiled functions."""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch.autograd import grad


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


def _both(function):
    return function, torchstrata.compile(function, fullgraph=True)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_batch_of_tangents(create_graph):
    torch.manual_seed(0)
    w, x, tangents = (torch.randn(shape).double() / 9 for shape in ((200, 200), (5, 200), (3, 5, 200)))
    w.requires_grad_(), x.requires_grad_()
    results = []
    for call in _both(lambda x: ((x @ w).tanh() * x.sin(), x.exp() * 2)):
        first, second = call(x)
        options = {"is_grads_batched": True, "create_graph": create_graph}
        found = grad(first, (x, w), tangents, retain_graph=True, **options)
        again = grad((first, second), x, (tangents, 2 * tangents), **options)
        further = grad(sum(g.square().sum() for g in (*found, *again)), (x, w)) if create_graph else ()
        results.append((*found, *again, *further))
        if not create_graph:
            with pytest.raises(RuntimeError, match="a second time"):
                first.sum().backward()
    torch.testing.assert_close(*results)


def test_vmap_of_backward():
    x, tangents = torch.randn(3, requires_grad=True), torch.randn(2, 4, 3)
    results = []
    for call in _both(lambda x: x.sin() * x):
        y = call(x)
        pull = lambda v: grad(y, x, v, retain_graph=True)[0]  # noqa: E731
        results.append((torch.vmap(torch.vmap(pull))(tangents), torch.autograd.functional.jacobian(call, x, vectorize=True)))
    torch.testing.assert_close(*results)
