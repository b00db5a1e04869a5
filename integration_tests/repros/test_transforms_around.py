"""Transforms of ``torch.func``, and what autograd does in batches, around and inside compiled
functions.
"""

from __future__ import annotations

import copy

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
    w, x, tangents = (
        torch.randn(shape).double() / 9 for shape in ((200, 200), (5, 200), (3, 5, 200))
    )
    w.requires_grad_(), x.requires_grad_()
    results = []
    for call in _both(lambda x: ((x @ w).tanh() * x.sin(), x.exp() * 2)):
        first, second = call(x)
        options = {"is_grads_batched": True, "create_graph": create_graph}
        found = grad(first, (x, w), tangents, retain_graph=True, **options)
        again = grad((first, second), x, (tangents, 2 * tangents), **options)
        further = (
            grad(sum(g.square().sum() for g in (*found, *again)), (x, w)) if create_graph else ()
        )
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
        results.append(
            (
                torch.vmap(torch.vmap(pull))(tangents),
                torch.autograd.functional.jacobian(call, x, vectorize=True),
            )
        )
    torch.testing.assert_close(*results)


def _norm(x):
    return x.sin().square().sum()


MADE = {
    "vmap": torch.vmap(_norm),
    "vmap in chunks": torch.vmap(_norm, chunk_size=2),
    "grad": torch.func.grad(_norm),
    "grad and value": torch.func.grad_and_value(_norm),
    "gradients of each": torch.vmap(torch.func.grad(_norm)),
    "hessian": torch.func.hessian(_norm),
    "jacobian": torch.func.jacrev(torch.func.jacfwd(_norm), chunk_size=1),
    "functionalized": torch.func.functionalize(lambda x: x.clone().add_(1).view(-1)),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_transforms_made_before(name, backend):
    x, made = torch.randn(3, 2), MADE[name]
    torch.testing.assert_close(
        torchstrata.compile(made, fullgraph=True, backend=backend)(x), made(x)
    )
    torch.testing.assert_close(
        torchstrata.compile(lambda x: made(x), fullgraph=True, backend=backend)(x), made(x)
    )


INDEXED = {
    "of rows": lambda row, i, j: row[i],
    "of both": lambda row, i, j: row[i, :, j],
    "behind": lambda row, i, j: row[..., None, j],
    "twice": lambda row, i, j: row[0][i, 1:] * torch.log_softmax(row, -1)[j, 0, 0],
    "keywords": lambda row, i, j: torch.vmap(lambda v, *, scale: v * scale)(row, scale=row),
}


@pytest.mark.parametrize("name", INDEXED)
def test_numbers_of_each_in_a_batch(name):
    rows, i, j = torch.randn(5, 3, 3, 3), torch.randint(3, (5,)), torch.randint(-3, 0, (5,))
    call, compiled = _both(lambda *args: torch.vmap(INDEXED[name])(*args))
    torch.testing.assert_close(compiled(rows, i, j), call(rows, i, j))


def test_linearized():
    def call(x, tangent):
        value, pushed = torch.func.linearize(lambda x: (x.sin() * x, x.sum()), x)
        return value, pushed(tangent), pushed(2 * tangent)

    x, tangent = torch.randn(3), torch.randn(3)
    value, *pushed = torchstrata.compile(call, fullgraph=True)(x, tangent)
    expected = [
        torch.func.jvp(lambda x: (x.sin() * x, x.sum()), (x,), (t,)) for t in (tangent, 2 * tangent)
    ]
    torch.testing.assert_close((value, pushed), (expected[0][0], [e[1] for e in expected]))


def test_functional_call_with_all_names():
    layer = torch.nn.BatchNorm1d(3)
    state = {name: value.detach() * 2 for name, value in layer.state_dict(keep_vars=True).items()}
    call, compiled = _both(
        lambda state, x: torch.func.functional_call(layer, state, (x,), strict=True)
    )
    results = [
        (f(given, torch.arange(6.0).view(2, 3)), given)
        for f in (call, compiled)
        for given in [copy.deepcopy(state)]
    ]
    torch.testing.assert_close(*results)
