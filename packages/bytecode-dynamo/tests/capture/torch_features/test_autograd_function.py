"""Custom gradients in captured graphs: what forward leaves for backward, and what they may not
do.
"""

from __future__ import annotations

import bytecode_dynamo as bd
import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


class Wrong(Function):
    """Its gradient is recognisable because it is not that of the forward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, k, flag=True):
        ctx.k, ctx.flag = k, flag
        return x * k

    @staticmethod
    def backward(ctx, g):
        if not ctx.needs_input_grad[0]:
            return None, None, None
        return (g * ctx.k if ctx.flag else g), None, None


class WithSetup(Function):
    @staticmethod
    def forward(x, w):
        return x @ w, x.sum(), 7

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.product = output[0]

    @staticmethod
    def backward(ctx, g, total, _):
        x, w = ctx.saved_tensors
        return g @ w.t() + total + ctx.product.sum(), x.t() @ g


class Optional(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, gx, gy):
        return None if gx is None else gx * 20, None if gy is None else gy * 30


class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 5


class Rounded(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class Sorted(Function):
    @staticmethod
    def forward(ctx, x):
        values, places = x.sort()
        ctx.mark_non_differentiable(places)
        ctx.places = places
        return values, places

    @staticmethod
    def backward(ctx, g, _):
        return torch.zeros_like(g).scatter(0, ctx.places, g)


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, None)
        return x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, nothing = ctx.saved_tensors
        assert nothing is None
        return g * x


class Applied(Function):
    @staticmethod
    def forward(ctx, x, function, scales):
        ctx.scales = scales
        return function(x) * scales["forward"]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scales["backward"], None, None


class Half(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g @ x


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return Wrong.apply(self.linear(x)) + Scaled.apply(x, 2)


def under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return Half.apply(x)


def without_gradients(x):
    with torch.no_grad():
        y = Wrong.apply(x)
    return y, y.requires_grad, x * 1


PROGRAMS = {
    "saved tensor": (lambda x: Wrong.apply(x) + 1, lambda: (leaf(3),)),
    "constants": (lambda x: Scaled.apply(x, 2.5) * Scaled.apply(x, 3, False), lambda: (leaf(3),)),
    "setup_context": (lambda x, w: WithSetup.apply(x, w), lambda: (leaf(3, 4), leaf(4, 2))),
    "gradients that may be None": (lambda x, y: Optional.apply(x, y), lambda: (leaf(3), leaf(3))),
    "only the first is used": (lambda x, y: Optional.apply(x, y)[0], lambda: (leaf(3), leaf(3))),
    "dirty": (lambda x: (lambda y: (Doubled.apply(y), y + 1))(x * 1), lambda: (leaf(3),)),
    "straight through": (lambda x: Rounded.apply(x * 3).sum(), lambda: (leaf(3),)),
    "no gradient needed": (lambda x: Rounded.apply(x * 3), lambda: (torch.randn(3),)),
    "non-differentiable output": (lambda x: Sorted.apply(x), lambda: (leaf(5),)),
    "once_differentiable": (lambda x: Once.apply(x), lambda: (leaf(3),)),
    "function and dict": (
        lambda x: Applied.apply(x, lambda v: v * x.detach(), {"forward": 2, "backward": 7}),
        lambda: (leaf(3),),
    ),
    "autocast": (under_autocast, lambda: (leaf(3, 3),)),
    "no_grad": (without_gradients, lambda: (leaf(3),)),
    "twice": (lambda x: Wrong.apply(Wrong.apply(x)), lambda: (leaf(3),)),
    "in a loop": (lambda x: sum(Scaled.apply(x, k) for k in range(3)), lambda: (leaf(3),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_custom_gradient_is_captured(name, check_gradients):
    check_gradients(*PROGRAMS[name])


def test_custom_gradient_inside_a_module(check_gradients):
    module = Layer()
    check_gradients(module, lambda: (leaf(2, 3),), module)


def test_second_derivative(alike):
    def f(x):
        return Wrong.apply(x).sin()

    def second(call):
        x = torch.ones(3, requires_grad=True)
        (g,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        return torch.autograd.grad(g.sum(), x)

    assert alike(second(f), second(bd.optimize("eager", fullgraph=True)(f)))


def test_state_that_backward_reads_is_guarded(check_gradients):
    class Steep(Function):
        slope = 2.0

        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * Steep.slope

    captured = bd.optimize("eager", fullgraph=True)(lambda x: Steep.apply(x))
    for slope in (2.0, 5.0):
        Steep.slope = slope
        x = leaf(3)
        captured(x).sum().backward()
        assert torch.equal(x.grad, torch.full((3,), slope))


def test_backward_with_an_effect_runs_outside_of_the_graph():
    log = []

    class Logged(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            log.append("backward")
            return g

    x = leaf(3)
    result = bd.optimize("eager")(lambda x: Logged.apply(x + 1) + 1)(x)
    assert log == []
    result.sum().backward()
    assert log == ["backward"]
    assert bd.counters["graph_breaks"] >= 1


def test_effect_of_forward_happens_once():
    log = []

    class Logged(Function):
        @staticmethod
        def forward(ctx, x):
            log.append(tuple(x.shape))
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g

    captured = bd.optimize("eager", fullgraph=True)(lambda x: Logged.apply(x))
    captured(leaf(3))
    captured(leaf(3))
    assert log == [(3,), (3,)]


def test_wrong_number_of_gradients_is_eagers_error():
    class Short(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g

    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        bd.optimize("eager")(lambda x, y: Short.apply(x, y))(leaf(3), leaf(3)).sum().backward()


class Transformed(Function):
    """Saves an input, an output and a number; its gradient is not that of the forward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, k):
        return x.exp() * k, x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output[0])
        ctx.k = inputs[1]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _):
        x, y = ctx.saved_tensors
        return g * y * ctx.k + x, None


def exponential(x):
    return Transformed.apply(x, 3.0)[0]


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: torch.func.vmap(exponential)(x),
        lambda x: torch.func.grad(lambda a: exponential(a).sum())(x),
        lambda x: torch.func.vmap(torch.func.grad(lambda a: exponential(a).sum()))(x),
        lambda x: torch.func.grad(lambda a: torch.func.vmap(exponential)(a).sum())(x),
        lambda x: torch.func.grad(
            lambda a: torch.func.grad(lambda b: exponential(b).sum())(a).sum()
        )(x),
        lambda x: torch.func.jacrev(exponential)(x[0]),
        lambda x: torch.func.vjp(exponential, x)[1](x),
    ],
)
def test_functions_under_transforms(transform):
    x = torch.randn(4, 3)
    torch.testing.assert_close(bd.optimize("eager", fullgraph=True)(transform)(x), transform(x))
