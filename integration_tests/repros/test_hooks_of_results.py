"""Hooks on tensors that backward does not come through."""

from __future__ import annotations

import pytest
import torch
import torchstrata


def beside(x, log):
    y = x * 3
    hooked = x * 2
    hooked.register_hook(lambda grad: log.append("hook"))
    return y, hooked.abs()


def after_write(x, log):
    x.neg_()
    hooked = x * 2
    hooked.register_hook(lambda grad: log.append("hook"))
    return x, hooked.abs()


def observe(call, program_result):
    log, leaf = [], torch.ones(2, requires_grad=True)
    result = call(leaf * 1, log)
    result[program_result].sum().backward()
    return log, leaf.grad.tolist()


@pytest.mark.parametrize("program_result", [0, 1])
@pytest.mark.parametrize("program", [beside, after_write])
def test_hook_runs_for_its_own_history_alone(program, program_result):
    expected = observe(program, program_result)
    assert observe(torchstrata.compile(program, backend="torchstrata"), program_result) == expected


def after_a_break(x, log):
    y = x * 3
    hooked = y * 2
    torch._dynamo.graph_break()
    hooked.register_hook(lambda grad: log.append("hook"))
    return y, hooked.abs()


def test_hook_on_a_result_that_has_a_node_with_another():
    """The results of a graph share an autograd node, which called hooks on one with None when
    another went backward.
    """
    for program_result in (0, 1):
        expected = observe(after_a_break, program_result)
        assert observe(torchstrata.compile(after_a_break), program_result) == expected


def test_hooks_of_the_caller():
    def function(x):
        return x.sin(), x.cos(), x * 2

    def run(call):
        log, x = [], torch.ones(3, requires_grad=True)
        a, b, c = call(x)
        kept, removed = (
            b.register_hook(lambda g: g * 2),
            b.register_hook(lambda g: log.append(g.tolist())),
        )
        c.retain_grad()
        a.sum().backward(retain_graph=True)
        (b * c).sum().backward(retain_graph=True)
        removed.remove()
        b.sum().backward()
        return log, x.grad, c.grad, kept.id in b._backward_hooks

    torch.testing.assert_close(run(torchstrata.compile(function)), run(function))
