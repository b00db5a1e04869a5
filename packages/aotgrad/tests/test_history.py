"""Differentiation inside a program whose inputs have been computed from one another outside; eager
sees that.
"""

from __future__ import annotations

import pytest
import torch
from aotgrad import FallbackWarning, Unsupported, aot_backend, aot_function, counters, run_eager

F64 = torch.float64
REASON = "AG031: a gradient inside passes through what an input was computed from"


@pytest.fixture(autouse=True)
def fresh_counters():
    counters.clear()


def compiled(f):
    return aot_function(f, forward_compiler=run_eager)


def leaf(*shape):
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def gradient(x, v):
    (g,) = torch.autograd.grad(
        (v.reshape(-1) * v.reshape(-1) * x.reshape(-1)).sum(), x, create_graph=True
    )
    return g * 2


RELATED = {
    "view": lambda x: x.view(-1),
    "product": lambda x: x * 2,
    "far": lambda x: (x.exp() @ x).sin().t(),
    "written": lambda x: (x * 1).mul_(3),
}


@pytest.mark.parametrize("name", RELATED)
def test_a_gradient_through_outer_history_is_eagers_and_counted(name):
    x = leaf(3, 3)
    v = RELATED[name](x)
    with pytest.warns(FallbackWarning, match="AG031.*test_history"):
        ours = compiled(gradient)(x, v)
    torch.testing.assert_close(ours, gradient(x, v))
    assert counters[REASON] == 1
    torch.testing.assert_close(
        torch.autograd.grad(ours.sum(), x),
        torch.autograd.grad(gradient(x, RELATED[name](x)).sum(), x),
    )


def test_each_call_is_looked_at():
    call, x = compiled(gradient), leaf(4)
    for v in (leaf(4) * 2, leaf(4).sin(), x.detach().requires_grad_() * 3):
        torch.testing.assert_close(call(x, v), gradient(x, v))
    assert not counters
    v = x * 2
    with pytest.warns(FallbackWarning, match="AG031"):
        torch.testing.assert_close(call(x, v), gradient(x, v))
    torch.testing.assert_close(call(x, leaf(4)).shape, x.shape)
    assert counters["fallbacks"] == 1


def test_with_respect_to_inputs_that_are_not_leaves():
    call, u = compiled(gradient), leaf(4)
    x = u * 2
    torch.testing.assert_close(call(x, u.exp()), gradient(x, u.exp()))  # beside each other
    torch.testing.assert_close(call(x, u), gradient(x, u))  # after the other
    assert not counters
    v = x.exp()
    with pytest.warns(FallbackWarning, match="AG031"):
        torch.testing.assert_close(call(x, v), gradient(x, v))


def test_a_graph_backend_looks_at_the_tensors_of_the_call():
    x = leaf(4)
    call = aot_backend(run_eager)(torch.fx.symbolic_trace(lambda x, v: wrapped(x, v)), [x, x * 2])
    with pytest.warns(FallbackWarning, match="AG031"):
        (ours,) = call(x, x * 2)
    torch.testing.assert_close(ours, gradient(x, x * 2))
    torch.testing.assert_close(call(x, leaf(4) * 2)[0].shape, x.shape)
    assert counters["fallbacks"] == 1


@torch.fx.wrap
def wrapped(x, v):
    return gradient(x, v)


def test_inputs_that_what_is_differentiated_does_not_read_are_no_matter():
    def f(x, v):
        (g,) = torch.autograd.grad((x * x).sum(), x, create_graph=True)
        return g * v

    x = leaf(4)
    torch.testing.assert_close(compiled(f)(x, x * 2), f(x, x * 2))
    assert not counters


def test_a_gradient_that_has_no_path_inside_is_refused():
    def f(x, v):
        return torch.autograd.grad((v * v).sum(), x)[0]

    x = leaf(4)
    with pytest.raises(Unsupported, match="AG031.*\n.*test_history"):
        compiled(f)(x, x * 2)

    def optional(x, v):
        return torch.autograd.grad((v * v).sum(), x, allow_unused=True)[0]

    with pytest.warns(FallbackWarning, match="AG031"):
        torch.testing.assert_close(compiled(optional)(x, x * 2), f(x, x * 2))
    assert compiled(optional)(x, leaf(4) * 2) is None


BACKWARDS = {
    "method": lambda x, v: (v * v).sum().backward(),
    "function": lambda x, v: torch.autograd.backward(tensors=(v * v).sum(), inputs=[x]),
    "several": lambda x, v: torch.autograd.backward([v.sum(), (v * x).sum()]),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_backward_through_an_input_that_is_not_a_leaf_is_refused(name):
    x = leaf(4)
    with pytest.raises(Unsupported, match="AG031.*\n.*test_history"):
        compiled(BACKWARDS[name])(x, x * 2)


def test_backward_of_what_is_made_inside_works():
    def f(v):
        z = v.detach().requires_grad_()
        (z * z).sum().backward()
        return z.grad * v

    v = leaf(4) * 2
    torch.testing.assert_close(compiled(f)(v), f(v))
