"""Functions of autograd that call each other, and parameters made by the program, in compiled
code.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch.autograd import Function, grad

from integration_tests.repros.outcome import outcome


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return Cosine.apply(x) * gradient


class Cosine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return -Sine.apply(x) * gradient


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_a_backward_that_calls_functions_is_differentiated(backend):
    def slope(x):
        return grad(Sine.apply(x).sum(), x, create_graph=True)[0]

    compiled = torchstrata.compile(slope, backend=backend, fullgraph=True)
    results = []
    for call in (slope, compiled):
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        first = call(x)
        results.append((first, *grad(first.square().sum(), x)))
    torch.testing.assert_close(*results)


def test_functions_without_end_say_where_they_end():
    compiled = torchstrata.compile(lambda x: Sine.apply(x), backend="eager", fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    result = compiled(x)
    with pytest.raises(RuntimeError, match="derivatives of an order above"):
        for _ in range(9):
            (result,) = grad(result.sum(), x, create_graph=True)


def test_parameters_made_inside_are_replaced():
    def call(x):
        layer = torch.nn.Linear(3, 2)
        weights = {name: torch.ones_like(value) for name, value in layer.named_parameters()}
        return torch.func.functional_call(layer, weights, (x,))

    x = torch.randn(4, 3)
    torch.testing.assert_close(torchstrata.compile(call, fullgraph=True)(x), call(x))


def test_the_loss_of_a_step_that_goes_backward():
    def step(x, w):
        loss = (x @ w).square().sum()
        loss.backward()
        return loss

    compiled = torchstrata.compile(step, fullgraph=True)
    results = []
    for call in (step, compiled):
        w = torch.ones(3, 2, requires_grad=True)
        loss = call(torch.ones(2, 3), w)
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        results.append((loss.detach(), w.grad))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("shape", [(), (4,), (4, 3)])
def test_tangents_that_are_negated_lazily(shape):
    call = lambda x: ((x * 3).sin(), x.exp())  # noqa: E731
    compiled, x, tangent = (
        torchstrata.compile(call, fullgraph=True),
        torch.randn(shape).requires_grad_(),
        torch.randn(shape),
    )
    results = [grad(f(x)[0], x, torch._neg_view(tangent)) for f in (call, compiled)]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("backend", ["aot_eager", "torchstrata"])
def test_what_autograd_runs_within_a_compiled_function_is_not_captured(backend):
    def slope(x):  # by a result, so that autograd runs outside of graphs
        return grad((x * x * x).sum(), x, create_graph=True)[0]

    compiled = torchstrata.compile(slope, backend=backend)
    results = []
    for call in (slope, compiled):
        leaf = torch.linspace(-1, 1, 5, requires_grad=True)
        first = call(leaf * 2)
        results.append((first, *grad(first.sum(), leaf)))
    torch.testing.assert_close(*results)
    assert torchstrata.counters["graph_breaks"] == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "f", [lambda x, norm: norm(x) * x, lambda x, norm: x.prod() * x], ids=["batch norm", "product"]
)
def test_derivatives_twice_of_what_keeps_statistics_or_counts_zeros(f, dynamic):
    results = []
    for call in (f, torchstrata.compile(f, fullgraph=True, dynamic=dynamic)):
        norm = torch.nn.BatchNorm1d(3).double()
        for n in (4, 5):
            x = torch.linspace(-1, 2, 3 * n, dtype=torch.float64).reshape(n, 3).requires_grad_()
            (first,) = grad(call(x, norm).square().sum(), x, create_graph=True)
            results.append((first, *grad(first.square().sum(), x), norm.running_mean.clone()))
    torch.testing.assert_close(results[:2], results[2:])


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_cotangents_in_containers(backend):
    def pulled(x, t):
        values, pullback = torch.func.vjp(lambda a: [a.sin(), {"k": a.cos()}], x)
        return values, pullback([t, {"k": t * 2}])

    x, t = torch.randn(3), torch.randn(3)
    compiled = torchstrata.compile(pulled, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x, t), pulled(x, t))


def test_results_go_backward_one_after_the_other():
    def losses(x, players):
        return [player(x).square().mean() for player in players]

    results = []
    for call in (losses, torchstrata.compile(losses, fullgraph=True)):
        torch.manual_seed(0)
        players = [torch.nn.Linear(300, 300) for _ in range(3)]
        for loss in call(torch.randn(64, 300), players):
            loss.backward()
        results.append([p.grad for player in players for p in player.parameters()])
    torch.testing.assert_close(*results)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_backward_inside_makes_gradients_that_have_gradients(backend):
    def step(x, w):
        for _ in range(2):
            (x * w).pow(3).sum().backward(create_graph=True)
        (curvature,) = grad(w.grad.square().sum(), w, retain_graph=True)
        return curvature

    results = []
    for call in (step, torchstrata.compile(step, backend=backend, fullgraph=True)):
        w = torch.linspace(-1, 1, 3, requires_grad=True)
        curvature = call(torch.arange(3.0), w)
        results.append((curvature, w.grad.detach(), *grad(w.grad.sum(), w)))
        w.grad = None
    torch.testing.assert_close(*results)


class Marking(Function):
    @staticmethod
    def forward(ctx, x, mark):
        getattr(ctx, mark)(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


@pytest.mark.parametrize("mark", ["mark_dirty", "mark_non_differentiable", "save_for_backward"])
@pytest.mark.parametrize("value", [0, 1.5, "text", None, [torch.ones(2)]], ids=repr)
def test_marks_on_what_is_no_tensor(value, mark):
    """What eager refuses was left out."""
    torchstrata.reset()
    compiled = torchstrata.compile(lambda x: Marking.apply(x, mark), backend="eager")
    assert str(outcome(compiled, value)) == str(outcome(Marking.apply, value, mark))
