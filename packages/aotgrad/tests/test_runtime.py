"""Autograd behaviour of compiled graphs: hooks, several backward calls, double backward, errors."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from aotgrad import CompilerError, ContractError, UserError, aot_backend, aot_function, run_eager

F64 = torch.float64


def compiled(f, **options):
    return aot_function(f, forward_compiler=run_eager, **options)


def tensors(*shapes, grad=True):
    return [torch.randn(*s, dtype=F64, requires_grad=grad) for s in shapes]


def mlp(x, w, v):
    return torch.tanh(x @ w) @ v


def test_backward_twice_needs_retain_graph():
    inputs = tensors((3, 4), (4, 4), (4, 2))
    out = compiled(mlp)(*inputs).sum()
    out.backward(retain_graph=True)
    first = [t.grad.clone() for t in inputs]
    out.backward()
    for t, g in zip(inputs, first):
        torch.testing.assert_close(t.grad, 2 * g)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_write_to_a_saved_input_before_backward_is_eagers_error():
    x, w, v = tensors((3, 4), (4, 4), (4, 2))
    out = compiled(mlp)(x, w, v)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_write_to_an_input_that_eager_does_not_save_is_fine():
    x = torch.randn(4, dtype=F64)
    w = torch.randn(4, dtype=F64, requires_grad=True)
    out = compiled(lambda x, w: (x * 2 * w).sum())(x, w)
    expected = x * 2
    x.zero_()
    out.backward()
    torch.testing.assert_close(w.grad, expected)


def test_write_to_an_output_that_eager_does_not_save_is_fine():
    w = torch.randn(4, dtype=F64, requires_grad=True)
    out = compiled(lambda w: w.sin() + 1)(w)
    out.data.zero_()
    out.add_(1)
    out.sum().backward()
    torch.testing.assert_close(w.grad, w.detach().cos())


def test_write_to_a_view_of_a_saved_value_is_eagers_error():
    w = torch.randn(4, dtype=F64, requires_grad=True)
    out = compiled(lambda w: w.exp().view(2, 2))(w * 1)  # of a leaf, exp would be computed again
    out.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_unused_outputs_and_inputs():
    def f(a, b, c):
        return a * b, b.sin()

    a, b, c = tensors((3,), (3,), (3,))
    _, second = compiled(f)(a, b, c)
    second.sum().backward()
    torch.testing.assert_close(b.grad, b.detach().cos())
    assert c.grad is None
    assert a.grad is None or not a.grad.any()


def test_saved_tensors_hooks_see_every_saved_tensor():
    inputs = tensors((3, 4), (4, 4), (4, 2))
    packed = []

    def pack(t):
        packed.append(t)
        return t.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = compiled(mlp)(*inputs)
    assert packed
    out.sum().backward()
    reference = [t.detach().clone().requires_grad_() for t in inputs]
    mlp(*reference).sum().backward()
    for a, b in zip(inputs, reference):
        torch.testing.assert_close(a.grad, b.grad)


def test_hooks_on_leaves_and_outputs_fire():
    inputs = tensors((3, 4), (4, 4), (4, 2))
    seen = []
    inputs[1].register_hook(lambda g: seen.append("leaf") or g * 2)
    out = compiled(mlp)(*inputs)
    out.register_hook(lambda g: seen.append("output"))
    out.sum().backward()
    assert seen == ["output", "leaf"]


@pytest.mark.parametrize("layout", ["expanded", "transposed", "strided"])
def test_tangents_of_any_layout(layout):
    inputs = tensors((3, 4), (4, 4), (4, 4))
    reference = [t.detach().clone().requires_grad_() for t in inputs]
    tangent = {
        "expanded": torch.randn(1, 1, dtype=F64).expand(3, 4),
        "transposed": torch.randn(4, 3, dtype=F64).t(),
        "strided": torch.randn(3, 8, dtype=F64)[:, ::2],
    }[layout]
    compiled(mlp)(*inputs).backward(tangent)
    mlp(*reference).backward(tangent)
    for a, b in zip(inputs, reference):
        torch.testing.assert_close(a.grad, b.grad)


def test_gradient_of_wrong_shape_is_eagers_error():
    out = compiled(mlp)(*tensors((3, 4), (4, 4), (4, 2)))
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        out.backward(torch.ones(2, 2, dtype=F64))


@pytest.mark.filterwarnings("ignore::aotgrad.FallbackWarning")
def test_double_backward():
    def f(x, w):
        return ((x @ w).sin() ** 2).sum(1)

    def penalty(call, x, w):
        out = call(x, w).sum()
        (g,) = torch.autograd.grad(out, x, create_graph=True)
        return torch.autograd.grad((g**2).sum() + out, [x, w])

    x, w = tensors((3, 4), (4, 4))
    torch.testing.assert_close(penalty(compiled(f), x, w), penalty(f, x, w))


def test_grad_mode_is_decided_per_call():
    calls = []

    def count(gm, inputs):
        calls.append(gm)
        return gm.forward

    gm = torch.fx.symbolic_trace(lambda x: x.sin())
    x = torch.randn(3, requires_grad=True)
    call = aot_backend(count)(gm, [x])
    assert call(x)[0].requires_grad
    with torch.no_grad():
        assert not call(x)[0].requires_grad
    assert call(x)[0].requires_grad
    assert len(calls) == 3  # forward, backward, inference


def test_each_kind_of_graph_has_its_compiler():
    seen = []

    def compiler(name):
        def compile(gm, inputs):
            seen.append(name)
            return gm.forward

        return compile

    gm = torch.fx.symbolic_trace(lambda x: x.sin())
    options = {"inference_compiler": compiler("inference")}
    aot_backend(compiler("forward"), compiler("backward"), **options)(
        gm, [torch.randn(3, requires_grad=True)]
    )
    aot_backend(compiler("forward"), compiler("backward"), **options)(gm, [torch.randn(3)])
    assert seen == ["forward", "backward", "inference"]


def test_bad_compilers_are_named():
    gm = torch.fx.symbolic_trace(lambda x: x.sin())

    def broken(gm, inputs):
        raise ValueError("no")

    with pytest.raises(CompilerError, match="broken raised ValueError"):
        aot_backend(broken)(gm, [torch.randn(3)])
    with pytest.raises(CompilerError, match="cannot be called"):
        aot_backend(lambda gm, inputs: 3)(gm, [torch.randn(3)])
    with pytest.raises(ContractError, match="B1.*returned 2 values instead of 1"):
        aot_backend(lambda gm, inputs: lambda x: (x, x))(gm, [torch.randn(3)])(torch.randn(3))
    with pytest.raises(UserError, match="unknown partition"):
        aot_backend(run_eager, partition="best")


def test_a_wrong_program_raises_what_eager_raises():
    with pytest.raises(RuntimeError, match="must have same reduction dim|size|shape"):
        compiled(lambda x, y: x @ y)(torch.randn(2, 3), torch.randn(2, 3))


def test_passes_rewrite_the_joint_graph():
    def double_sine(gm):
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            node.target = torch.ops.aten.cos.default

    x = torch.randn(3)
    torch.testing.assert_close(compiled(lambda x: x.sin(), passes=[double_sine])(x), x.cos())


def test_artifacts_have_names():
    seen = {}
    compiled(lambda x: x.sin() * 2, on_artifact=seen.__setitem__)(
        torch.randn(3, requires_grad=True)
    )
    assert list(seen) == ["joint", "partition", "forward", "backward", "runtime"]
    assert "aten.sin" in seen["forward"] or "sin" in seen["forward"]
    assert "def call(" in seen["runtime"]


@pytest.mark.parametrize("touched", [False, True])
def test_many_inputs_stay_one_tuple_unless_one_is_touched(touched):
    def f(*xs):
        if touched:
            xs[3].add_(1)
        return sum(x * i for i, x in enumerate(xs)), xs[0].sin()

    seen = {}
    call = compiled(f, on_artifact=seen.__setitem__)
    for grad_mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with grad_mode():
            given = tensors(*[(3,)] * 12, grad=False)
            copies = [x.clone() for x in given]
            torch.testing.assert_close((call(*given), given), (f(*copies), copies))
    assert ("*inputs" in seen["runtime"]) is not touched


SCRIPT = """
import sys, torch
from aotgrad import aot_module, aot_function, run_eager
nn = torch.nn
m = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GELU(), nn.Flatten(), nn.Linear(8, 2))
c = aot_module(m, forward_compiler=run_eager)
c(torch.randn(3, 1, 4, 4)).sum().backward()
def f(x):
    with torch.no_grad():
        x.add_(1)
    return torch.nn.functional.dropout(x, 0.5).softmax(0)
x = torch.randn(4, requires_grad=True)
y = aot_function(f, forward_compiler=run_eager)(x * 1)
s = aot_function(lambda x: x.sin(), forward_compiler=run_eager)
torch.autograd.grad(s(x).sum(), x, create_graph=True)[0].sum().backward()
loaded = sorted(m for m in sys.modules if m.startswith(("torch._dynamo", "torch._inductor")))
assert not loaded, loaded
"""


def test_the_incumbent_is_never_loaded():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
