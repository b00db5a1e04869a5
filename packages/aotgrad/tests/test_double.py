"""Gradients of gradients: the backward of a compiled graph is compiled as a differentiable graph
itself.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import sympy
import torch
import torch.nn.functional as F
from aotgrad import Unsupported, aot_backend, aot_function, counters, run_eager
from aotgrad.graphs.trace import evaluate_size
from aotgrad.testing import capture_symbolically

F64 = torch.float64


def frozen_dropout(x, w, b):
    return F.dropout(torch.tanh(x @ w + b).sin(), 0.5)


def frozen_mask(x, w, b):
    return torch.exp(x) * (torch.rand_like(x) > 0.5) + b.sin()


def detached_factor(x, w, b):
    return (x * x.detach() @ w.tanh()).exp() + b


def no_grad_factor(x, w, b):
    with torch.no_grad():
        scale = x.sin() + w.sum()
    return scale * x.exp() * b


def linear_only(x, w, b):
    return x + b, x.detach() @ w


def several_outputs(x, w, b):
    h = x @ w
    return h.softmax(-1), h.norm(dim=-1), (h > 0).sum()


def normalised(x, w, b):
    return F.layer_norm(x, (4,), b, b) @ w


def writes_buffer(x, w, b):
    y = x.detach().clone()
    y.mul_(2)
    return (y * x).sin() @ w


def views(x, w, b):
    y = x @ w
    return y[0], y.t()[1:].exp(), b.expand(3, 4)


def overwritten(x, w, b):
    with torch.no_grad():
        b.mul_(2)
    return (x @ w) * b * b


PROGRAMS = [
    frozen_dropout,
    frozen_mask,
    detached_factor,
    no_grad_factor,
    linear_only,
    several_outputs,
    normalised,
    writes_buffer,
    views,
    overwritten,
]


def make():
    torch.manual_seed(7)
    return [torch.randn(size, dtype=F64, requires_grad=True) for size in ((3, 4), (4, 4), (4,))]


def derivatives(call, inputs, order=3):
    torch.manual_seed(0)
    level = [
        o for o in torch.utils._pytree.tree_leaves(call(*inputs)) if isinstance(o, torch.Tensor)
    ]
    found = [level]
    for _ in range(order):
        roots = [(r * r.detach().cos()).sum() for r in level if r is not None and r.requires_grad]
        if not roots:
            break
        level = torch.autograd.grad(roots, inputs, create_graph=True, allow_unused=True)
        found.append(level)
    return found


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_three_orders_equal_eager(f):
    counters.clear()
    compiled = aot_function(f, forward_compiler=run_eager)
    for _ in range(2):
        torch.testing.assert_close(derivatives(compiled, make()), derivatives(f, make()))
    assert not counters


@pytest.mark.parametrize("budget", [0.0, 0.5, 1.0])
def test_all_derivatives_see_one_mask(budget):
    compiled = aot_function(
        lambda x: F.dropout(x.exp(), 0.5).sin(),
        forward_compiler=run_eager,
        activation_memory_budget=budget,
    )
    x = torch.rand(200, dtype=F64, requires_grad=True)
    y = compiled(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    dropped = y == 0
    assert 50 < dropped.sum() < 150
    kept = torch.where(dropped, 0.0, 2 * x.exp())
    torch.testing.assert_close(
        (g, h), (kept.cos() * kept, kept.cos() * kept - kept.sin() * kept**2)
    )


def test_buffers_written_beside():
    def f(x, running):
        running.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return (x - running.detach()).exp().sin()

    def run(call):
        x, running = make()[0], torch.zeros(4, dtype=F64)
        found = derivatives(lambda x: call(x, running), [x])
        return found, running

    torch.testing.assert_close(run(aot_function(f, forward_compiler=run_eager)), run(f))


def test_the_gradient_goes_through_the_compilers():
    seen = []

    def compiler(gm, inputs):
        seen.append([str(n.target) for n in gm.graph.nodes if n.op == "call_function"])
        return gm.forward

    x = torch.randn(3, requires_grad=True)
    compiled = aot_function(torch.sin, forward_compiler=compiler)
    (g,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    assert len(seen) == 4  # forward and backward of the program and of its gradient
    assert "aten.cos.default" in seen[2]
    torch.testing.assert_close(torch.autograd.grad(g.sum(), x)[0], -x.sin())


def test_what_forward_saved_is_not_computed_again():
    graphs = {}
    compiled = aot_function(
        lambda x, w: (x @ w).tanh(),
        forward_compiler=run_eager,
        on_artifact=lambda name, text: graphs.setdefault(name, text),
    )
    x, w = make()[:2]
    torch.autograd.grad(compiled(x, w).sum(), x, create_graph=True)
    assert "= ops.aten.tanh." in graphs["forward"]
    assert "= ops.aten.tanh." not in graphs["gradient forward"]


def test_inputs_that_die_before_backward():
    x, w, _ = make()
    compiled = aot_function(lambda h: torch.tanh(h) * 2, forward_compiler=run_eager)

    def penalty(f):
        (g,) = torch.autograd.grad(f(x @ w).sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), [x, w])

    torch.testing.assert_close(penalty(compiled), penalty(lambda h: torch.tanh(h) * 2))


def test_inputs_are_freed_with_the_graph():
    compiled = aot_function(lambda h: torch.exp(h), forward_compiler=run_eager)
    x, w, _ = make()
    h = x @ w
    alive = weakref.ref(h)
    out = compiled(h).sum()
    del h
    out.backward()
    gc.collect()
    assert alive() is None


def test_symbolic_sizes():
    def f(x, w):
        return (x @ w).tanh().sum(0)

    x, w, _ = make()
    gm = capture_symbolically(f, [x, w], {0: [0]})
    call = aot_backend(run_eager)(gm, [3, x, w])
    for rows in (3, 5):
        y = torch.randn(rows, 4, dtype=F64, requires_grad=True)
        expected = derivatives(f, [y, w])
        torch.testing.assert_close(derivatives(lambda a, b: call(rows, a, b)[0], [y, w]), expected)


@pytest.mark.parametrize("value", [2, 2.5])
def test_numbers_stand_for_symbols(value):
    number = evaluate_size(sympy.Symbol("n"), {sympy.Symbol("n"): value})
    assert number == value and type(number) is type(value)


@pytest.mark.parametrize("keeps", [True, False], ids=["saved", "dead"])
def test_sizes_that_only_the_running_program_knows(keeps):
    """A result's size depends on data: its tangent, what was saved, and the program traced again
    have the same size.
    """

    def f(x, mask):
        chosen = torch.masked_select(x, mask)
        return F.dropout(chosen.exp(), 0.5) * chosen if keeps else chosen

    call = aot_function(f, forward_compiler=run_eager)
    x, mask = (
        torch.randn(7, dtype=F64, requires_grad=True),
        torch.tensor([1, 0, 1, 1, 0, 1, 1]).bool(),
    )
    for given in (mask, mask.roll(1), ~mask):

        def third(g):
            torch.manual_seed(3)
            found = [g(x, given)]
            for _ in range(3):
                found += torch.autograd.grad((found[-1] ** 2).sum(), x, create_graph=True)
            return found

        torch.testing.assert_close(third(call), third(f))


def test_changed_inputs_are_noticed():
    x = torch.randn(3, dtype=F64, requires_grad=True)
    compiled = aot_function(lambda x: x.sin(), forward_compiler=run_eager)
    y = x * 1
    out = compiled(y)
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_writes_to_inputs_with_history_are_refused():
    x = torch.randn(3, dtype=F64, requires_grad=True)

    def f(y):
        y.mul_(2)
        return y.sin()

    out = aot_function(f, forward_compiler=run_eager)(x * 1)
    with pytest.raises(Unsupported, match="AG030"):
        torch.autograd.grad(out.sum(), x, create_graph=True)
