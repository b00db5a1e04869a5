"""Calls that run eagerly are counted under their reason and announced once per compiled
callable.
"""

from __future__ import annotations

import warnings

import aotgrad
import pytest
import torch
from aotgrad import CompilerError, FallbackWarning, aot_backend, aot_function, counters, run_eager
from torch.autograd import forward_ad

SHARED = "inputs that are written share memory"


@pytest.fixture(autouse=True)
def fresh_counters():
    counters.clear()


def write(x, y):
    x.add_(1)
    return x * y


def test_shared_memory_is_counted_and_announced_once_per_callable():
    for _ in range(2):
        compiled = aot_function(write, forward_compiler=run_eager)
        compiled(torch.ones(2), torch.ones(2))
        assert not counters["fallbacks"]
        x = torch.arange(3.0)
        with pytest.warns(FallbackWarning, match=SHARED):
            out = compiled(x[:2], x.data[1:])  # versions of their own
        assert out.tolist() == [2.0, 4.0]  # y sees what was written to x
        with warnings.catch_warnings(action="error"):
            compiled(x[:2], x.data[1:])
        assert counters == {"fallbacks": 2, SHARED: 2}
        counters.clear()


def product(x, w):
    return (x.sin() * w).sum()


def with_dual_numbers(call, x, w):
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(call(forward_ad.make_dual(x, torch.ones_like(x)), w)))


TRANSFORMS = {
    "jvp": lambda call, x, w: torch.func.jvp(lambda x: call(x, w), (x,), (torch.ones_like(x),)),
    "vmap": lambda call, x, w: torch.func.vmap(call)(x.expand(2, 3), w.expand(2, 3)),
    "grad": lambda call, x, w: torch.func.grad(call)(x, w),
    "hessian": lambda call, x, w: torch.func.hessian(call)(x, w),
    "dual numbers": with_dual_numbers,
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("entry", ["function", "backend"])
def test_transforms_around_a_compiled_graph_are_right_and_counted(name, entry):
    x, w = torch.randn(3, requires_grad=name == "dual numbers"), torch.randn(3)
    if entry == "function":
        call = aot_function(product, forward_compiler=run_eager)
    else:
        backend = aot_backend(run_eager)(torch.fx.symbolic_trace(product), [x, w])

        def call(x, w):
            return backend(x, w)[0]

    with pytest.warns(FallbackWarning, match="torch.func transform or forward-mode AD"):
        ours = TRANSFORMS[name](call, x, w)
    torch.testing.assert_close(ours, TRANSFORMS[name](product, x, w))
    assert counters["fallbacks"] >= 1


def test_compiled_calls_are_not_counted():
    compiled = aot_function(lambda x: x.sin(), forward_compiler=run_eager)
    x = torch.randn(3, requires_grad=True)
    with warnings.catch_warnings(action="error"):
        compiled(x).sum().backward()
        with torch.no_grad():
            compiled(x)
    assert not counters


@torch.fx.wrap
def leaf_in_grad_mode(x):
    return x.detach().requires_grad_(torch.is_grad_enabled())  # a new leaf is refused


def test_a_grad_mode_that_cannot_be_compiled_runs_eagerly():
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        call = aot_backend(run_eager)(torch.fx.symbolic_trace(lambda x: leaf_in_grad_mode(x)), [x])
        call(x)
    assert not counters
    with pytest.warns(FallbackWarning, match="grad mode on cannot be compiled.*AG02"):
        (out,) = call(x)
    assert out.is_leaf and out.requires_grad
    call(x)
    assert counters == {"fallbacks": 2, "grad mode on cannot be compiled": 2}


def test_a_broken_compiler_is_no_reason_to_run_eagerly():
    def broken(gm, inputs):
        raise ValueError("no")

    x = torch.randn(3, requires_grad=True)
    call = aot_backend(run_eager, inference_compiler=broken)(
        torch.fx.symbolic_trace(lambda x: x.sin()), [x]
    )
    with torch.no_grad(), pytest.raises(CompilerError, match="broken raised ValueError"):
        call(x)
    assert not counters


def test_counters_are_public():
    assert aotgrad.counters is counters
