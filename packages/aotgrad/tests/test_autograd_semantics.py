"""What surrounds a compiled call: backward in all its forms, hooks, grad modes, wrong use. Eager's
results and errors.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from aotgrad import aot_function, run_eager

F64 = torch.float64
CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


def program(x, w):
    return (x @ w).tanh().sin(), (x * 2).sum(0), x.argmax(1)


def make():
    torch.manual_seed(0)
    return torch.randn(3, 4, dtype=F64, requires_grad=True), torch.randn(
        4, 4, dtype=F64, requires_grad=True
    )


@case
def backward_twice(call):
    a, *_ = call(*make())
    a.sum().backward()
    a.sum().backward()


@case
def backward_twice_retained(call):
    x, w = make()
    a, *_ = call(x, w)
    a.sum().backward(retain_graph=True)
    a.sum().backward()
    return x.grad, w.grad


@case
def accumulates(call):
    x, w = make()
    for _ in range(3):
        a, b, _ = call(x, w)
        (a.sum() + b.sum()).backward()
    return x.grad, w.grad


@case
def absent_gradient(call):
    x, w = make()
    _, b, _ = call(x, w)
    b.sum().backward()
    return x.grad, w.grad


def engine_handover_order(call, retain_graph):
    x, w = make()
    a, b, _ = call(x, w)
    b.sum().backward(retain_graph=retain_graph)
    first = x.grad.clone(), w.grad
    a.sum().backward()
    return first, x.grad, w.grad


@case
def absent_then_present(call):
    return engine_handover_order(call, True)


@case
def one_after_the_other(call):
    return engine_handover_order(call, False)


@case
def one_after_the_other_differentiably(call):
    x, w = make()
    a, b, _ = call(x, w)
    b.sum().backward()
    (g,) = torch.autograd.grad(a.sum(), x, create_graph=True)
    g.square().sum().backward()
    return x.grad, w.grad


@case
def one_after_the_other_and_again(call):
    a, b, _ = call(*make())
    a.sum().backward()
    b.sum().backward()
    a.sum().backward()


@case
def written_between(call):
    x, w = make()
    a, b, _ = call(x, w)
    b.sum().backward()
    with torch.no_grad():
        w.mul_(2)
    a.sum().backward()


@case
def of_one_value(call):
    x, w = make()
    a, *_ = call(x, w)
    c, *_ = call(a, w)
    first, second, _ = call(c, w)
    second.sum().backward()
    first.sum().backward()


@case
def wrong_shape(call):
    a, *_ = call(*make())
    a.backward(torch.ones(4, 4, dtype=F64))


@case
def complex_for_real(call):
    a, *_ = call(*make())
    a.backward(torch.ones(3, 4, dtype=torch.complex128))


@case
def other_dtype(call):
    x, w = make()
    a, *_ = call(x, w)
    a.backward(torch.ones(3, 4, dtype=torch.float32))
    return x.grad


@case
def integer_gradient(call):
    x, w = make()
    a, *_ = call(x, w)
    a.backward(torch.ones(3, 4, dtype=torch.int64))
    return x.grad


@case
def gradient_of_integers(call):
    call(*make())[2].sum().backward()


@case
def hook_with_wrong_dtype(call):
    a, *_ = call(*make())
    a.register_hook(lambda g: g.float())
    a.sum().backward()


@case
def hook_with_wrong_shape(call):
    a, *_ = call(*make())
    a.register_hook(lambda g: g[0])
    a.sum().backward()


@case
def saved_parameter_changed(call):
    x, w = make()
    a, *_ = call(x, w)
    with torch.no_grad():
        w.add_(1)
    a.sum().backward()


@case
def saved_input_changed(call):
    x, w = make()
    y = x * 1
    a, *_ = call(y, w)
    y.add_(1)
    a.sum().backward()


@case
def base_of_saved_view_changed(call):
    x, w = make()
    y = torch.cat([x, x]) * 1
    a, *_ = call(y[:3], w)
    y[5].add_(1)
    a.sum().backward()


@case
def unsaved_output_changed(call):
    x, w = make()
    _, b, _ = call(x, w)
    b.mul_(2)
    (b * b).sum().backward()
    return x.grad


@case
def hooks_on_all_tensors(call):
    x, w = make()
    log = []

    def hook(name, factor):
        def run(g):
            log.append((name, g.clone()))
            return g * factor

        return run

    x.register_hook(hook("x", 2))
    w.register_hook(hook("w", 1))
    x.register_post_accumulate_grad_hook(lambda p: log.append(("x done", p.grad.clone())))
    w.register_post_accumulate_grad_hook(lambda p: log.append(("w done", p.grad.clone())))
    a, b, _ = call(x, w)
    a.register_hook(hook("a", 3))
    b.register_hook(hook("b", 5))
    (a.sum() + b.sum()).backward()
    return sorted(name for name, _ in log), [g for _, g in sorted(log, key=lambda entry: entry[0])]


@case
def accumulation_order_of_a_reducer(call):
    x, w = make()
    ready = []
    for name, p in (("x", x), ("w", w)):
        p.register_post_accumulate_grad_hook(lambda p, name=name: ready.append(name))
    a, *_ = call(x, w)
    a.sum().backward()
    return ready


@case
def multi_grad_hook(call):
    x, w = make()
    seen = []
    torch.autograd.graph.register_multi_grad_hook((x, w), seen.append)
    a, b, _ = call(x, w)
    (a.sum() + b.sum()).backward()
    return seen


@case
def node_prehook(call):
    x, w = make()
    a, *_ = call(x, w)
    a.grad_fn.register_prehook(lambda gs: tuple(None if g is None else g * 2 for g in gs))
    a.sum().backward()
    return x.grad


@case
def packed_saved_tensors(call):
    x, w = make()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.detach().clone().numpy(), torch.from_numpy
    ):
        a, *_ = call(x, w)
    a.sum().backward()
    return x.grad


@case
def saved_on_cpu(call):
    x, w = make()
    with torch.autograd.graph.save_on_cpu():
        a, *_ = call(x, w)
    a.sum().backward()
    return x.grad


@case
def saving_disabled(call):
    x, w = make()
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        call(x, w)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            pass


@case
def transposed_tangent(call):
    x, w = make()
    a, *_ = call(x, w)
    a.backward(torch.arange(12, dtype=F64).view(4, 3).t())
    return x.grad


@case
def tangents_with_zero_and_other_strides(call):
    x, w = make()
    a, b, _ = call(x, w)
    torch.autograd.backward(
        [a, b], [torch.ones(1, dtype=F64).expand(3, 4), torch.arange(8, dtype=F64)[::2]]
    )
    return x.grad, w.grad


@case
def only_some_inputs(call):
    x, w = make()
    a, *_ = call(x, w)
    a.sum().backward(inputs=[w])
    return x.grad, w.grad


@case
def retains_gradients_of_values(call):
    x, w = make()
    y = x * 2
    y.retain_grad()
    a, *_ = call(y, w)
    a.retain_grad()
    a.sum().backward()
    return y.grad, a.grad


@case
def no_grad_call(call):
    with torch.no_grad():
        a, b, c = call(*make())
    return a, b, c, a.requires_grad


@case
def inference_call(call):
    with torch.inference_mode():
        a, _, c = call(*make())
    return a.requires_grad, a.is_inference(), a.clone(), c.is_inference()


@case
def backward_under_no_grad(call):
    x, w = make()
    a, *_ = call(x, w)
    with torch.no_grad():
        a.sum()
        torch.autograd.backward(a, torch.ones_like(a))
    return x.grad


@case
def frozen_weight(call):
    x, w = make()
    a, *_ = call(x, w.requires_grad_(False))
    a.sum().backward()
    return x.grad, w.grad


@case
def anomaly_detection(call):
    with torch.autograd.detect_anomaly(check_nan=True):
        a, *_ = call(*make())
        (a / 0 * 0).sum().backward()


@case
def autocast_around(call):
    x, w = (t.detach().float().requires_grad_() for t in make())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a, b, _ = call(x, w)
    (a.float().sum() + b.float().sum()).backward()
    return a, b, x.grad, w.grad


@case
def sum_of_two_calls(call):
    x, w = make()
    (call(x, w)[0] * call(x * 2, w)[0]).sum().backward()
    return x.grad, w.grad


def outcome(run, call):
    try:
        with warnings.catch_warnings(action="ignore"):
            return run(call)
    except RuntimeError as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", CASES)
def test_behaves_as_eager(name):
    expected = outcome(CASES[name], program)
    compiled = aot_function(program, forward_compiler=run_eager)
    for _ in range(2):
        check(outcome(CASES[name], compiled), expected)


def check(ours, expected):
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(ours, expected)
    elif isinstance(expected, (list, tuple)):
        assert type(ours) is type(expected) and len(ours) == len(expected), (
            f"{ours} instead of {expected}"
        )
        for a, b in zip(ours, expected):
            check(a, b)
    else:
        assert ours == expected
