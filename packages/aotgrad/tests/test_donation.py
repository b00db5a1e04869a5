"""Saved values are given to backward: freed early, overwritten when nobody else holds them, copied
when somebody does.
"""

from __future__ import annotations

import weakref

import pytest
import torch
from aotgrad import aot_function, run_eager

kept: list[weakref.ref] = []


def forward_compiler(gm, inputs):
    run = run_eager(gm, inputs)

    def call(*arguments):
        results = run(*arguments)
        kept[:] = [weakref.ref(r) for r in results]
        return results

    return call


def overwriting(gm, inputs):
    """Destroys its donated inputs."""
    run = run_eager(gm, inputs)
    donated = [
        i for i, n in enumerate(gm.graph.find_nodes(op="placeholder")) if n.meta.get("donated")
    ]

    def call(*arguments):
        results = run([*arguments]) if run.takes_list else run(*arguments)
        for i in donated:
            arguments[i].fill_(float("nan"))
        return results

    return call


def f(x, w):
    return ((x @ w).sin() @ w).exp()


def make():
    torch.manual_seed(0)
    x, w = (
        torch.randn(128, 128, dtype=torch.float64),
        torch.randn(128, 128, dtype=torch.float64) / 100,
    )
    return x, torch.nn.Parameter(w)


def expected(times=1):
    x, w = make()
    for _ in range(times):
        f(x, w).sum().backward()
    return w.grad


def compiled(backward_compiler=overwriting, **choices):
    return aot_function(
        f, forward_compiler=run_eager, backward_compiler=backward_compiler, **choices
    )


def test_donated_values_may_be_overwritten():
    texts = {}
    x, w = make()
    call = compiled(on_artifact=texts.__setitem__)
    for _ in range(2):
        call(x, w).sum().backward()
    torch.testing.assert_close(w.grad, expected(2))
    assert "if reference_counts(mm_default) != SOLE_REFERENCE:" in texts["runtime"]
    assert (
        "reference_counts(x0)" not in texts["runtime"]
        and "reference_counts(exp_default)" not in texts["runtime"]
    )


def test_a_kept_graph_runs_twice():
    x, w = make()
    y = compiled()(x, w).sum()
    y.backward(retain_graph=True)
    y.backward()
    torch.testing.assert_close(w.grad, expected(2))
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@pytest.mark.parametrize(
    "hold",
    [
        lambda s: s,
        lambda s: [t[1:] for t in s],
        lambda s: [w * t for t in s for w in [torch.ones(1, requires_grad=True)]],
    ],
)
def test_values_that_somebody_holds_stay(hold):
    x, w = make()
    y = compiled()(x, w)
    held = hold(y.grad_fn.saved_tensors)
    before = [t.detach().clone() for t in y.grad_fn.saved_tensors]
    values = [t.detach().clone() for t in held]
    y.sum().backward()
    torch.testing.assert_close(w.grad, expected())
    for t, value in zip(held, values):
        torch.testing.assert_close(t.detach(), value)
    assert all(t.isfinite().all() for t in before)


def test_values_that_hooks_hold_stay():
    x, w = make()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        y = compiled()(x, w)
    y.sum().backward()
    torch.testing.assert_close(w.grad, expected())
    assert all(t.isfinite().all() for t in packed)


def test_a_list_lets_go_of_saved_values():
    alive = []

    def backward_compiler(gm, inputs):
        run = run_eager(gm, inputs)

        def call(arguments):
            arguments = [arguments.copy(), arguments.clear()][0]
            results = run(arguments)
            alive.append([r() is not None for r in kept])
            return results

        call.takes_list = True
        return call

    x, w = make()
    call = aot_function(f, forward_compiler=forward_compiler, backward_compiler=backward_compiler)
    y = call(x, w)
    assert [r() is not None for r in kept] == [True, True]
    y.sum().backward()
    # the output lives, the activation is gone before backward returns
    assert alive == [[True, False]]


def test_small_values_and_outputs_are_not_donated():
    graphs = []

    def keep(gm, inputs):
        graphs.append(gm)
        return run_eager(gm, inputs)

    aot_function(lambda x: x.exp().sin(), forward_compiler=keep)(torch.randn(4, requires_grad=True))
    aot_function(lambda x: x.exp(), forward_compiler=keep)(
        torch.randn(256, 256, requires_grad=True)
    )
    assert not any(n.meta.get("donated") for gm in graphs for n in gm.graph.nodes)


def test_a_gradient_that_is_an_argument_is_returned():
    x, y = (torch.randn(128, 128, dtype=torch.float64, requires_grad=True) for _ in range(2))
    call = aot_function(lambda x, y: (x @ x).sin() + y, forward_compiler=run_eager)
    tangent = torch.randn(128, 128, dtype=torch.float64)
    found = torch.autograd.grad(call(x, y), (x, y), tangent)
    for a, b in zip(found, torch.autograd.grad((x @ x).sin() + y, (x, y), tangent)):
        torch.testing.assert_close(a, b)
