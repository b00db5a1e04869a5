"""Gradients taken inside captured code, checkpoints, hooks on tensors."""

from __future__ import annotations

import bytecode_dynamo as bd
import pytest
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def layer(x, w):
    return torch.nn.functional.dropout(torch.sin(x @ w), 0.5)


def penalty(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return (g**2).sum()


def inner_leaf(x):
    x = x.detach().requires_grad_()
    (g,) = torch.autograd.grad((x**2).sum(), x)
    return g + 1


def unused(x, y):
    return torch.autograd.grad((x * 2).sum(), [x, y], allow_unused=True)


def hooked(x):
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y * 3


def hooked_with_closure(x, k):
    y = x * 2
    y.register_hook(lambda g: g * k + x.detach())
    return y * 3


def hook_removed(x):
    y = x * 2
    handle = y.register_hook(lambda g: g * 10)
    handle.remove()
    return y * 3


def hook_on_input(x):
    x.register_hook(lambda g: g * 10)
    return x * 3


def hook_on_input_removed(x):
    handle = x.register_hook(lambda g: g * 10)
    y = x * 3
    handle.remove()
    return y


PROGRAMS = {
    "grad": (lambda x: torch.autograd.grad((x**2).sum(), x)[0] + 1, lambda: (leaf(3),)),
    "gradient penalty": (penalty, lambda: (leaf(3),)),
    "leaf made inside": (inner_leaf, lambda: (torch.randn(3),)),
    "unused": (unused, lambda: (leaf(3), leaf(3))),
    "checkpoint": (
        lambda x, w: checkpoint(layer, x, w, use_reentrant=False).sum(),
        lambda: (leaf(3, 3), leaf(3, 3)),
    ),
    "reentrant": (
        lambda x, w: checkpoint(layer, x, w, use_reentrant=True).sum(),
        lambda: (leaf(3, 3), leaf(3, 3)),
    ),
    "hook": (hooked, lambda: (leaf(3),)),
    "hook over a closure": (hooked_with_closure, lambda: (leaf(3), torch.randn(3))),
    "hook removed": (hook_removed, lambda: (leaf(3),)),
    "hook on an input": (hook_on_input, lambda: (leaf(3),)),
    "hook on an input removed": (hook_on_input_removed, lambda: (leaf(3),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_is_captured(name, check_gradients):
    check_gradients(*PROGRAMS[name])


def test_checkpointed_modules(check_gradients):
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3))
    check_gradients(
        lambda x: checkpoint(module, x, use_reentrant=False) * 2, lambda: (leaf(2, 3),), module
    )
    bd.reset()
    check_gradients(
        lambda x: checkpoint_sequential(module, 2, x, use_reentrant=False),
        lambda: (leaf(2, 3),),
        module,
    )


def test_reentrant_checkpoint_of_inputs_without_gradient(check_gradients):
    module = torch.nn.Linear(3, 3)
    check_gradients(
        lambda x: checkpoint(module, x, use_reentrant=True) * 2,
        lambda: (torch.randn(2, 3),),
        module,
    )


def test_calls_of_a_checkpoint_carry_its_number():
    found = bd.explain(
        lambda x: (
            checkpoint(torch.sin, x, use_reentrant=False)
            + checkpoint(torch.cos, x, use_reentrant=False)
        )
    )
    (graph,) = found(leaf(3)).graphs
    regions = [
        node.meta.get("recompute") for node in graph.graph.nodes if node.op == "call_function"
    ]
    assert len(set(regions[:2])) == 2
    assert regions[2] is None


def test_checkpoint_around_a_captured_function(alike):
    def f(x, w):
        return torch.sin(x @ w).relu()

    def run(call):
        torch.manual_seed(0)
        x, w = leaf(3, 3), leaf(3, 3)
        checkpoint(call, x, w, use_reentrant=False).sum().backward()
        return x.grad, w.grad

    assert alike(run(f), run(bd.optimize("eager")(f)))


def test_handle_of_a_hook_on_an_input_works_after_the_call():
    def f(x):
        return x.register_hook(lambda g: g * 10), x * 3

    x = leaf(3)
    handle, y = bd.optimize("eager", fullgraph=True)(f)(x)
    handle.remove()
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 3.0))


def test_hook_with_an_effect_runs_at_backward():
    log = []

    def f(x):
        y = x * 2
        y.register_hook(lambda g: log.append("hook"))
        return y * 3

    y = bd.optimize("eager")(f)(leaf(3))
    assert log == []
    y.sum().backward()
    assert log == ["hook"]


def test_backward_inside_accumulates(alike):
    def run(wrap):
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 1)

        def f(x):
            loss = module(x).sum()
            loss.backward()
            return loss.detach() * 2

        call = wrap(f)
        results = [call(torch.ones(2, 3)) for _ in range(3)]
        return results, [p.grad for p in module.parameters()]

    assert alike(run(lambda f: f), run(bd.optimize("eager")))


def test_grad_through_an_input_that_is_no_leaf_breaks(check_gradients):
    def f(x):
        (g,) = torch.autograd.grad((x**2).sum(), x, retain_graph=True)
        return g

    x = leaf(3) * 2
    found = bd.explain(f)(x)
    assert torch.equal(found.result, 2 * x)
    assert found.graph_break_count == 1
