"""Results that have no history in common are differentiated apart: backward of one leaves what the
others came from alone.
"""

from __future__ import annotations

import collections
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
import torchstrata
from torch import nn


@pytest.fixture(autouse=True)
def _fresh():
    torchstrata.reset()


def two(a, b):
    return a.sin() * 2, b.exp()


def with_shared_weight(a, b, w):
    return (a @ w).relu(), (b @ w).exp()


def saved_results(a, b):
    return a.exp(), b.tanh(), a.sigmoid() + a.shape[0]


def gradients(f, make, order, *more):
    a, b = (torch.linspace(-1, 1, 16).view(4, 4).requires_grad_() for _ in range(2))
    results = f(a * make, b * b, *more)
    for i in order:
        results[i].sum().backward()
    return [t.grad for t in (a, b, *more)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0,), (1,)])
@pytest.mark.parametrize("f", [two, with_shared_weight], ids=lambda f: f.__name__)
def test_one_after_the_other(f, order):
    compiled = torchstrata.compile(f, fullgraph=True)
    for _ in range(2):
        weights = [
            [torch.full((4, 4), 0.5, requires_grad=True)][: f is with_shared_weight]
            for _ in range(2)
        ]
        found, expected = (
            gradients(compiled, 2, order, *weights[0]),
            gradients(f, 2, order, *weights[1]),
        )
        torch.testing.assert_close(found, expected)
    assert not torchstrata.counters["fallbacks"]


def test_together_and_twice():
    compiled = torchstrata.compile(saved_results, fullgraph=True)

    def run(f):
        a, b = (torch.linspace(-1, 1, 6).requires_grad_() for _ in range(2))
        x, y, z = f(a * 3, b * 2)
        (x.sum() + y.sum()).backward(retain_graph=True)
        (y * z).sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            z.sum().backward()
        return a.grad, b.grad

    torch.testing.assert_close(run(compiled), run(saved_results))


def test_gradients_of_gradients():
    def run(f):
        a, b = (torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_() for _ in range(2))
        x, y = f(a * 3, b * 2)
        (g,) = torch.autograd.grad((x * x).sum(), a, create_graph=True)
        (h,) = torch.autograd.grad((y * y).sum(), b, create_graph=True)
        return torch.autograd.grad((g * g).sum() + (h * h).sum(), [a, b])

    torch.testing.assert_close(run(torchstrata.compile(two, fullgraph=True)), run(two))


def test_a_history_from_an_earlier_call():
    def f(x, total):
        return x * x, total + x.sum()

    def run(f):
        total, grads = torch.zeros(()), []
        for _ in range(3):
            x = torch.arange(3.0).requires_grad_()
            y, total = f(x + 1, total)
            y.sum().backward()
            grads.append(x.grad)
        total.backward()
        return grads

    torch.testing.assert_close(run(torchstrata.compile(f)), run(f))


def test_histories_are_freed():
    compiled = torchstrata.compile(saved_results, fullgraph=True)
    a = torch.ones(3, requires_grad=True)
    held = a * 2
    alive = weakref.ref(held)
    results = compiled(held, a * 3)
    del held
    results[0].sum().backward()
    del results
    gc.collect()
    assert alive() is None


def test_batch_statistics_beside():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, a, b):
            return self.norm(a), b * 2

    def run(wrap):
        net = Net()
        f = wrap(net)
        a, b = torch.arange(12.0).view(3, 4).requires_grad_(), torch.ones(3, requires_grad=True)
        x, y = f(a * 2, b.exp())
        (x**3).sum().backward()
        y.sum().backward()
        return a.grad, b.grad, net.norm.weight.grad, net.norm.running_mean

    torch.testing.assert_close(run(torchstrata.compile), run(lambda net: net))


def test_what_no_gradient_reaches_is_left_alone():
    """Backward went on to what a tensor that is only read had been computed from, whose values were
    freed by then.
    """

    def function(kept, x):
        kept.append(x.sum())
        sum(kept)
        x.copy_(x)
        return x

    def run(call):
        kept, gradients = collections.deque(maxlen=2), []
        for rows in (2, 1, 3):
            leaf = torch.ones(rows, 4, requires_grad=True)
            call(kept, leaf * 2).sum().backward()
            gradients.append(leaf.grad.tolist())
        return gradients

    assert run(torchstrata.compile(function, fullgraph=True)) == run(function)


def test_inputs_without_a_gradient_are_no_inputs_of_the_node():
    def function(x, read):
        return x * 2, (read + 1).detach()

    result, _ = torchstrata.compile(function)(
        torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True) * 2
    )
    assert len([node for node, _ in result.grad_fn.next_functions if node is not None]) == 1


def test_a_write_to_what_another_result_needs():
    """All results were one autograd node, whose backward found an input changed that only another
    result's had to read.
    """

    def function(x):
        return torch.relu(x), F.group_norm(x, 2), x.sum()

    def run(call):
        leaf = torch.tensor([[1.0, -1, 2, -2], [3, 1, -1, 0.5]], requires_grad=True)
        first, second, third = call(leaf)
        with torch.no_grad():
            leaf.mul_(2)
        third.backward()
        first.sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.sum().backward()
        return leaf.grad

    torch.testing.assert_close(run(torchstrata.compile(function)), run(function))


def test_a_leaf_that_two_results_read():
    def function(x, others):
        return sum(others), (x * x)[1:]

    def run(call):
        x, y = (torch.ones(3, 4, requires_grad=True) for _ in range(2))
        result, _ = call(x, [y, y * 2])
        with torch.no_grad():
            x[:1] = 0
        result.sum().backward()
        return y.grad

    torch.testing.assert_close(run(torchstrata.compile(function)), run(function))


@pytest.mark.parametrize("backend", ["aot_eager", "torchstrata"])
def test_gradients_that_share_memory(backend):
    """As in eager mode, gradients of what was put together are parts of one tensor."""

    def shares(function, call):
        leaves = [torch.ones(3, 4, requires_grad=True) for _ in range(2)]
        result = call(function)(leaves)
        result.backward(torch.arange(float(result.numel())).reshape(result.shape))
        first, second = (leaf.grad for leaf in leaves)
        one_storage = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        return one_storage, first.data_ptr() == second.data_ptr(), first.tolist(), second.tolist()

    together = (
        torch.cat,
        lambda leaves: torch.stack(leaves).sum(0),
        sum,
        lambda leaves: torch.stack(leaves).transpose(0, 1),
    )
    for function in together:
        expected = shares(function, lambda f: f)
        assert (
            shares(function, lambda f: torchstrata.compile(f, backend=backend, fullgraph=True))
            == expected
        )


def test_a_hook_of_another_result():
    """A hook was called, without a gradient, since the results were of one node."""
    called = []

    def function(x, given):
        del given["a"]  # which is not there at first
        total, other = x.sum(), x * 2
        other.register_hook(lambda gradient: called.append(gradient))
        return total

    compiled = torchstrata.compile(function)
    for given in ({}, {"a": 1}):
        x = torch.ones(3, 4, requires_grad=True)
        if given:
            compiled(x, given).backward()
        else:
            with pytest.raises(KeyError):
                compiled(x, given)
    assert called == []


@pytest.mark.parametrize("result", [0, 1])
def test_gradients_of_gradients_of_one_leaf(result):
    """The second derivative was that of zeros where a result's own backward does not read the
    input.
    """

    def function(x):
        return x.sin() * x, x.exp() * 2

    def run(f):
        x = torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_()
        (g,) = torch.autograd.grad(f(x)[result].sum(), x, create_graph=True)
        return torch.autograd.grad((g * g).sum(), x)

    torch.testing.assert_close(run(torchstrata.compile(function)), run(function))
