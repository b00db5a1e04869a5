"""Leaves that a program makes, gives a gradient and lets go of: a result's history holds them, and
backward adds to it.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata


def leaf_of(x):
    return x.detach().clone().requires_grad_()


def after_backward(x, held):
    leaf = leaf_of(x)
    (leaf**2).sum().backward()
    return leaf.grad, leaf + x


def assigned(x, held):
    leaf = leaf_of(x)
    leaf.grad = held
    return held, leaf * x


def part_of_it(x, held):
    leaf = leaf_of(x)
    (leaf**2).sum().backward()
    return leaf.grad[:1], leaf + x


def two_leaves(x, held):
    one, other = leaf_of(x), leaf_of(x)
    (one * other).sum().backward()
    return [one.grad, other.grad], one * 2 + other * 3


def before_a_break(x, held):
    leaf = leaf_of(x)
    (leaf**2).sum().backward()
    gradient, y = leaf.grad, leaf + x
    del leaf
    torchstrata.graph_break()
    return gradient, y * 2


PROGRAMS = [after_backward, assigned, part_of_it, two_leaves, before_a_break]


def observe(call):
    gradient, y = call(torch.ones(3), torch.ones(3))
    y.sum().backward()
    return repr(gradient)


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_grow_as_in_eager_mode(program, backend):
    compiled = torchstrata.compile(program, backend=backend)
    assert [observe(compiled) for _ in range(2)] == [observe(program)] * 2


@pytest.mark.parametrize("wrapped", [torch.nn.Parameter, torch.Tensor.requires_grad_])
@pytest.mark.parametrize("written_back", [False, True])
def test_a_leaf_of_what_was_written(wrapped, written_back):
    """Results that depend on no input, but on a leaf of the program's, came out without a
    history.
    """

    def function(x):
        x[0] = 1.0
        leaf = wrapped(x.detach())
        if written_back:
            y = torch.zeros_like(leaf)
            y.copy_(leaf * 2)
            return leaf, y
        return leaf, leaf * 2

    def run(call):
        leaf, result = call(torch.ones(3, 4, requires_grad=True) * 2)
        result.sum().backward()
        return result.requires_grad, result.is_leaf, leaf.grad.tolist()

    assert run(torchstrata.compile(function)) == run(function)


def test_layout_of_a_gradient_of_one_row():
    """A gradient keeps its own layout where it differs from the leaf's in dimensions of size one
    only, which a symbolic size didn't show.
    """

    def function(x):
        leaf = leaf_of(x.chunk(2)[0])
        (leaf**2).sum().backward()
        return leaf.grad

    compiled = torchstrata.compile(function, backend="eager")
    for rows in (3, 5, 2):
        x = torch.arange(4.0 * rows).reshape(rows, 4).t().contiguous().t()
        assert compiled(x).stride() == function(x).stride()
