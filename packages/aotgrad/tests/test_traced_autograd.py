"""Autograd inside a program: custom functions, checkpoints, hooks, gradients of parts, grad modes,
autocast.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from aotgrad import aot_function, run_eager
from aotgrad.testing import check_against_eager
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

F64 = torch.float64
PROGRAMS = {}


def program(f):
    PROGRAMS[f.__name__] = f
    return f


class KeepsState(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.exponent = 3
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.exponent * x * x * 10


class WritesInput(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 5


class AbsentGradients(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        return (0 if a is None else a * 7) + (0 if b is None else b * 11)


class OnceOnly(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class WithIndices(Function):
    @staticmethod
    def forward(ctx, x):
        values, indices = x.sort()
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        return values, indices

    @staticmethod
    def backward(ctx, g, _):
        return torch.zeros_like(g).scatter(-1, ctx.saved_tensors[0], g)


class SetupContext(Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y * 2, g * x * 3


class StraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class ReturnsView(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, g):
        return g.view(3, 4) * 2


class ReturnsInput(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return -g


@program
def keeps_state(x, w):
    return KeepsState.apply(x) @ w.t()


@program
def writes_input(x, w):
    return WritesInput.apply(x * w) + 1


@program
def absent_gradients(x, w):
    first, _ = AbsentGradients.apply(x)
    return first * w


@program
def once_only(x, w):
    return OnceOnly.apply(x * w)


@program
def with_indices(x, w):
    return WithIndices.apply(x * w)


@program
def setup_context(x, w):
    return SetupContext.apply(x, w).sum()


@program
def straight_through(x, w):
    return StraightThrough.apply(x * 3) * w


@program
def returns_view(x, w):
    return ReturnsView.apply(x * w)


@program
def returns_input(x, w):
    return ReturnsInput.apply(x) * w


@program
def returns_value(x, w):
    return ReturnsInput.apply(x * w)


@program
def functions_in_functions(x, w):
    return StraightThrough.apply(KeepsState.apply(OnceOnly.apply(x * w)))


@program
def checkpointed(x, w):
    return checkpoint(lambda a, b: (a @ b.t()).sin().exp(), x, w, use_reentrant=False)


@program
def checkpointed_twice(x, w):
    def inner(a):
        return checkpoint(lambda b: b.sin().exp(), a, use_reentrant=False).tanh()

    return checkpoint(inner, x * w, use_reentrant=False)


@program
def checkpointed_dropout(x, w):
    return checkpoint(
        lambda a, b: F.dropout((a @ b.t()).sin(), 0.5).exp(), x, w, use_reentrant=False
    )


@program
def packs_saved_tensors(x, w):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        return (x * w).exp().sin()


@program
def gradient_penalty(x, w):
    y = (x * w).exp().sum()
    if not x.requires_grad:
        return y
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return y + (g.norm() - 1) ** 2


@program
def gradient_without_graph(x, w):
    y = (x * w).exp().sum()
    if not x.requires_grad:
        return y
    (g,) = torch.autograd.grad(y, x, retain_graph=True)
    return g * w + y


@program
def func_grad(x, w):
    return torch.func.grad(lambda a: (a * w).exp().sum())(x) * w


@program
def func_vmap(x, w):
    return torch.func.vmap(lambda a, b: (a * b).sin().sum())(x, w)


@program
def func_jvp(x, w):
    return torch.func.jvp(lambda a: (a * w).sin(), (x,), (w,))[1]


@program
def func_jacrev(x, w):
    return torch.func.jacrev(lambda a: (a * w).sin().sum(0))(x)


@program
def func_hessian(x, w):
    return torch.func.hessian(lambda a: (a * w[0]).sin().sum())(x[0])


@program
def vmap_of_grad(x, w):
    return torch.func.vmap(torch.func.grad(lambda a, b: (a * b).sin().sum()), in_dims=(0, 0))(x, w)


@program
def under_no_grad(x, w):
    with torch.no_grad():
        y = x * w
    return y * x, y


@program
def grad_inside_no_grad(x, w):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * w
        y = y * z.detach()
    return y + z


@program
def detaches(x, w):
    y = x * w
    return y * y.detach(), y.detach().sin()


@program
def inference_region(x, w):
    with torch.inference_mode():
        scale = float(3) * torch.ones(4, dtype=F64)
    return x * w * scale.clone()


@program
def hook_on_value(x, w):
    y = x * w
    if y.requires_grad:
        y.register_hook(lambda g: g * 3)
    return y.sin()


@program
def autocast_weights_twice(x, w):
    x, w = x.float(), w.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ w.t()) @ w, F.linear(x, w).float().softmax(-1)


@program
def autocast_disabled_inside(x, w):
    x, w = x.float(), w.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w.t()
        with torch.autocast("cpu", enabled=False):
            return y.float() @ w


def inputs(x_grad, w_grad):
    def make():
        return torch.randn(3, 4, dtype=F64, requires_grad=x_grad), torch.randn(
            3, 4, dtype=F64, requires_grad=w_grad
        )

    return make


@pytest.mark.parametrize("grad", ["both", "one", "none"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_behaves_as_eager(name, grad):
    f = PROGRAMS[name]
    compiled = aot_function(f, forward_compiler=run_eager, fallback_random=True)
    # eager computes its output again; compiled code keeps it, and refuses writes to it
    writes = name != "checkpointed_dropout"
    check_against_eager(f, inputs(grad == "both", grad != "none"), compiled=compiled, writes=writes)


def test_autocast_casts_a_leaf_once_as_eager_does():
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return ((x @ w) @ w).float().sum()

    x, w = torch.randn(5, 4), torch.randn(4, 4)
    found = []
    for call in (f, aot_function(f, forward_compiler=run_eager)):
        leaves = [x.clone().requires_grad_(), torch.nn.Parameter(w.clone())]
        found.append(torch.autograd.grad(call(*leaves), leaves))
    for expected, ours in zip(*found):
        assert torch.equal(expected, ours)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_values_are_recomputed(reentrant):
    graphs = {}

    def f(x, w):
        return checkpoint(lambda a, b: (a @ b).sin().exp(), x, w, use_reentrant=reentrant) * 2

    compiled = aot_function(f, forward_compiler=run_eager, on_artifact=graphs.__setitem__)
    found = []
    for call in (f, compiled):
        torch.manual_seed(0)
        leaves = [torch.randn(4, 4, dtype=F64, requires_grad=True) for _ in range(2)]
        call(*leaves).sum().backward()
        found.append([t.grad for t in leaves])
    torch.testing.assert_close(found[0], found[1])
    assert graphs["forward"].count("return (mul_tensor,)") == 1  # nothing of the region is saved
    assert "mm.default(x0, x1)" in graphs["backward"]


def test_checkpointed_dropout_has_one_mask():
    def f(x):
        return checkpoint(lambda a: F.dropout(a * 1, 0.5).exp(), x, use_reentrant=False)

    x = torch.ones(100, requires_grad=True)
    y = aot_function(f, forward_compiler=run_eager)(x)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 1)


@pytest.mark.parametrize("read", [lambda x: x, lambda x: x.view(-1), lambda x: x * 1])
def test_an_output_that_a_function_returns_as_it_got_it_has_the_gradient_of_the_function(read):
    gradients = []
    for wrap in (lambda f: f, lambda f: aot_function(f, forward_compiler=run_eager)):
        x = torch.randn(3, 4, requires_grad=True)
        returned, doubled = wrap(
            lambda x: (ReturnsInput.apply(read(x)), ReturnsInput.apply(x) * 2)
        )(x)
        (returned.sum() + doubled.sum()).backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
