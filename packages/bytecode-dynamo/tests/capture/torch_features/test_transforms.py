"""torch.func in captured graphs."""

from __future__ import annotations

import bytecode_dynamo as bd
import pytest
import torch
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def cube(x):
    return (x**3).sum()


def pullback(x, t):
    out, back = vjp(lambda v: (v.sin(), v.cos()), x)
    return out, back((t, t * 2))


def with_aux(x):
    return grad(lambda v: (cube(v), {"twice": v * 2}), has_aux=True)(x)


def two_arguments(x, y):
    return grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, y)


def per_sample(w, xs, ys):
    def loss(w, x, y):
        return ((x @ w - y) ** 2).sum()

    return vmap(grad(loss), in_dims=(None, 0, 0))(w, xs, ys)


def nested_inputs(tree):
    return vmap(lambda t: {"sum": t["a"] + t["b"][0], "k": t["b"][1] * 2})(tree)


def control_flow(xs):
    def f(x):
        if x.dim() == 1:
            return x.cumsum(0)
        return x

    return vmap(f)(xs), vmap(vmap(lambda v: v * 2), in_dims=1, out_dims=1)(xs)


PROGRAMS = {
    "vmap": (lambda x: vmap(lambda r: r.sin().sum())(x), lambda: (leaf(3, 4),)),
    "vmap of a torch function": (
        lambda x, y: torch.vmap(torch.dot, in_dims=(0, 1))(x, y),
        lambda: (leaf(3, 4), leaf(4, 3)),
    ),
    "vmap over a closure": (lambda x, y: vmap(lambda r: r * y)(x), lambda: (leaf(3, 4), leaf(4))),
    "vmap of control flow": (control_flow, lambda: (leaf(3, 4),)),
    "vmap of nested inputs": (
        nested_inputs,
        lambda: ({"a": leaf(3, 2), "b": (leaf(3, 2), leaf(3))},),
    ),
    "grad": (lambda x: grad(cube)(x) + 1, lambda: (leaf(3),)),
    "grad over a closure": (
        lambda x, y: grad(lambda v: (v**3 * y).sum())(x),
        lambda: (leaf(3), leaf(3)),
    ),
    "grad with aux": (with_aux, lambda: (leaf(3),)),
    "grad of two arguments": (two_arguments, lambda: (leaf(3), leaf(3))),
    "grad_and_value": (lambda x: grad_and_value(cube)(x), lambda: (leaf(3),)),
    "grad of grad": (lambda x: grad(lambda v: grad(cube)(v).sum())(x), lambda: (leaf(3),)),
    "jacrev": (lambda x: jacrev(torch.sin)(x), lambda: (leaf(3),)),
    "jacfwd": (lambda x: jacfwd(lambda v: v.sin() * v)(x), lambda: (leaf(3),)),
    "hessian": (lambda x: hessian(cube)(x), lambda: (torch.randn(3),)),
    "jvp": (lambda x, t: jvp(torch.sin, (x,), (t,)), lambda: (torch.randn(3), torch.randn(3))),
    "vjp": (pullback, lambda: (torch.randn(3), torch.randn(3))),
    "gradients per sample": (per_sample, lambda: (leaf(3), torch.randn(5, 3), torch.randn(5))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_transform_is_captured(name, check_gradients):
    check_gradients(*PROGRAMS[name])


def test_functional_call(check_gradients):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    names = list(dict(module.named_parameters()))

    def f(x, *tensors):
        return functional_call(module, dict(zip(names, tensors)), (x,)), module[0].weight

    check_gradients(f, lambda: (leaf(2, 3), leaf(4, 3), leaf(4), leaf(4), leaf(4)), module)


def test_functional_call_replaces_tied_weights(check_gradients):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x, *, scale):
            return self.b(self.a(x)) * scale

    module = Tied()
    check_gradients(
        lambda x, w: functional_call(module, {"a.weight": w}, (x,), {"scale": 2}),
        lambda: (leaf(2, 3), leaf(3, 3)),
        module,
    )


def test_python_effect_in_a_transformed_function_happens_once():
    log = []

    def f(x):
        return vmap(lambda r: log.append(r.dim()) or r * 2)(x)

    captured = bd.optimize("eager", fullgraph=True)(f)
    captured(torch.ones(3, 2))
    captured(torch.ones(3, 2))
    assert log == [1, 1]


def test_tensor_that_leaks_out_of_a_transformed_function_breaks_the_graph():
    def f(x):
        kept = []
        y = vmap(lambda r: kept.append(r) or r * 2)(x)
        return y, len(kept)

    assert torch.equal(bd.optimize("eager")(f)(torch.ones(3, 2))[0], torch.full((3, 2), 2.0))


def test_changed_closure_is_noticed():
    scale = 2

    def f(x):
        return vmap(lambda r: r * scale)(x)

    captured = bd.optimize("eager", fullgraph=True)(f)
    assert torch.equal(captured(torch.ones(3)), torch.full((3,), 2.0))
    scale = 5
    assert torch.equal(captured(torch.ones(3)), torch.full((3,), 5.0))


def test_graph_text_shows_the_function():
    found = bd.explain(lambda x: vmap(lambda r: r.sin())(x))(torch.ones(3))
    assert "method.sin(" in str(found)
    assert "<the function bytecode_dynamo.vmap>(" in str(found)
    assert "graphs=(graphs.body_1,))" in str(found)


def test_vmap_over_an_empty_batch() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row.sin() * 2)(x).sum() + x.shape[0]

    x = torch.empty(0, 3)
    torch.testing.assert_close(bd.optimize()(program)(x), program(x))
