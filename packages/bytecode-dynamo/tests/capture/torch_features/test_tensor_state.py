"""Attributes, gradients and flags of tensors; parameters and modules made or completed inside."""

from __future__ import annotations

import copy

import bytecode_dynamo as bd
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def writes_gradient(x):
    x.grad = torch.ones_like(x) * 2
    x.grad.add_(1)
    return x.detach() * x.grad


def attributes(x):
    x.scale = 3
    y = x * 2
    y.label = "doubled"
    before = hasattr(x, "extra"), hasattr(y, "label")
    x.extra = 1
    del x.extra
    return y * x.scale, y.label, before, hasattr(x, "extra")


def keeps_attribute(x):
    y = x * 2
    y.label = ["doubled"]
    return y, {"again": y}


def questions(x):
    y = x * 2
    return (
        y,
        x.is_leaf,
        y.is_leaf,
        y.grad_fn is None,
        x.grad_fn is None,
        y.requires_grad,
        x.grad is None,
    )


def inner_leaf(x):
    y = x.detach()
    y.requires_grad = True
    return (y * 3).requires_grad, y.is_leaf


def makes_parameter(x):
    p = nn.Parameter(torch.ones(3) * 2)
    q = nn.Parameter(x.detach(), requires_grad=False)
    return x * p.detach() * q, isinstance(p, nn.Parameter), p.requires_grad, q.requires_grad


PROGRAMS = {
    "gradient": (writes_gradient, lambda: (leaf(3),)),
    "attributes": (attributes, lambda: (torch.randn(3),)),
    "attribute of a result": (keeps_attribute, lambda: (torch.randn(3),)),
    "questions": (questions, lambda: (leaf(3),)),
    "leaf inside": (inner_leaf, lambda: (torch.randn(3),)),
    "parameter": (makes_parameter, lambda: (leaf(3),)),
    "module": (lambda x: nn.Sequential(nn.ReLU(), nn.Flatten())(x), lambda: (leaf(2, 3),)),
    "detached data": (lambda x, y: x.data.copy_(y) + x, lambda: (leaf(3), torch.randn(3))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_is_captured(name, check_gradients):
    check_gradients(*PROGRAMS[name])


def test_attributes_are_on_the_tensors_after_the_call():
    x = torch.ones(3)
    bd.optimize("eager", fullgraph=True)(attributes)(x)
    assert x.scale == 3
    assert not hasattr(x, "extra")
    y, again = bd.optimize("eager", fullgraph=True)(keeps_attribute)(x)
    assert y.label == ["doubled"]
    assert again["again"] is y


def test_gradients_set_to_none(alike):
    def run(wrap):
        module = nn.Linear(3, 1)
        for p in module.parameters():
            p.grad = torch.ones_like(p)

        def f(x):
            for p in module.parameters():
                p.grad = None
            return x * 2

        wrap(f)(torch.ones(3))
        return [p.grad for p in module.parameters()]

    assert run(lambda f: f) == run(bd.optimize("eager", fullgraph=True)) == [None, None]


def test_gradient_that_does_not_fit_is_eagers_error():
    def f(x):
        x.grad = torch.ones(7)
        return x

    with pytest.raises(RuntimeError, match="gradient of size"):
        bd.optimize("eager")(f)(leaf(3))


def test_input_that_begins_to_require_a_gradient():
    def f(x):
        y = x * 2
        x.requires_grad_()
        return y, x * 3

    def run(call):
        x = torch.ones(3)
        y, z = call(x)
        return y.requires_grad, z.requires_grad, x.requires_grad

    assert run(f) == run(bd.optimize("eager", fullgraph=True)(f)) == (False, True, True)


@pytest.mark.parametrize(
    "make", [lambda: nn.LazyLinear(4), lambda: nn.Sequential(nn.LazyConv1d(4, 3), nn.ReLU())]
)
def test_lazy_module_is_completed_by_its_first_capture(make, alike):
    def run(wrap):
        torch.manual_seed(0)
        module = make()
        call = wrap(module)
        x = torch.ones(2, 5, 6)
        return (
            call(x).detach(),
            call(x).detach(),
            type(module).__name__,
            sorted(module.state_dict()),
        )

    assert alike(run(lambda m: m), run(bd.optimize("eager", fullgraph=True)))
    assert bd.counters["graphs"] == 1


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


def parametrized():
    module = nn.Linear(3, 3)
    parametrize.register_parametrization(module, "weight", Symmetric())
    return module


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(3)])
        self.named = nn.ParameterDict(
            {"a": nn.Parameter(torch.randn(3)), "b": nn.Parameter(torch.randn(3))}
        )

    def forward(self, x):
        for p in self.items:
            x = x * p
        for value in self.named.values():
            x = x + value
        return x * self.items[-1] + self.named.b * len(self.items) if "a" in self.named else x


MODULES = {
    "parametrization": parametrized,
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(3, 3)),
    "weight_norm by hook": lambda: torch.nn.utils.weight_norm(nn.Linear(3, 3)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(3, 3)).eval(),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(3, 3)),
    "parameter containers": Holder,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("name", MODULES)
def test_module_is_captured(name, check_gradients):
    torch.manual_seed(0)
    module = MODULES[name]()
    check_gradients(module, lambda: (leaf(2, 3),), module)


def test_forward_hooks(check_gradients):
    module = nn.Linear(3, 3)
    module.register_forward_pre_hook(lambda m, inputs: (inputs[0] + 1,))
    module.register_forward_hook(lambda m, inputs, output: output * 2)
    module.register_forward_hook(lambda m, inputs, kwargs, output: output + 1, with_kwargs=True)
    check_gradients(module, lambda: (leaf(2, 3),), module)


def test_backward_hooks_run_at_backward(alike):
    def run(wrap):
        torch.manual_seed(0)
        module, log = nn.Linear(3, 3), []
        module.register_full_backward_pre_hook(lambda m, g: log.append("pre") or (g[0] * 2,))
        module.register_full_backward_hook(lambda m, gi, go: log.append("post") or (gi[0] * 3,))
        x = leaf(2, 3)
        wrap(module)(x).sum().backward()
        return x.grad, module.weight.grad, log

    assert alike(run(lambda m: m), run(bd.optimize("eager")))


def test_copied_module_is_independent():
    module = nn.Linear(3, 3)
    captured = bd.optimize("eager")(module)
    other = copy.deepcopy(module)
    assert torch.equal(captured(torch.ones(3)), other(torch.ones(3)))


def test_recurrent_module(check_gradients):
    torch.manual_seed(0)
    module = nn.LSTM(3, 4, batch_first=True)
    check_gradients(lambda x: module(x)[0], lambda: (leaf(2, 5, 3),), module)


def test_hook_registered_and_removed_inside(check_gradients):
    module = nn.Linear(3, 3)

    def f(x):
        handle = module.register_forward_hook(lambda m, inputs, output: output * 2)
        y = module(x)
        handle.remove()
        return y + module(x)

    found = bd.explain(f)(torch.ones(2, 3))
    assert found.graph_break_count == 0
    assert torch.equal(found.result, f(torch.ones(2, 3)))
    assert not module._forward_hooks


def test_gradients_are_clipped_in_one_graph():
    def run(wrap):
        ps = [nn.Parameter(torch.ones(3) * k) for k in range(3)]
        for p in ps:
            p.grad = torch.ones(3) * 10
        norm = wrap(lambda: nn.utils.clip_grad_norm_(ps, 1.0))()
        wrap(lambda: nn.utils.clip_grad_value_(ps, 0.1))()
        return norm, [p.grad for p in ps]

    torch.testing.assert_close(run(bd.optimize("eager", fullgraph=True)), run(lambda f: f))


def test_hook_after_accumulation_on_a_parameter():
    module, log = nn.Linear(3, 1), []

    def f(x):
        module.weight.register_post_accumulate_grad_hook(lambda p: log.append(p.shape))
        return module(x)

    bd.optimize("eager", fullgraph=True)(f)(torch.ones(2, 3)).sum().backward()
    assert log == [(1, 3)]


def test_conversion_that_changes_nothing(check_gradients):
    module = nn.Linear(3, 1)
    check_gradients(lambda x: module.to(torch.float32)(x), lambda: (leaf(2, 3),), module)


def test_checks_on_sizes():
    def f(x):
        torch._check(x.shape[0] > 1, lambda: f"too short: {x.shape[0]}")
        return x * 2

    captured = bd.optimize("eager", fullgraph=True, dynamic=True)(f)
    assert torch.equal(captured(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="too short: 1"):
        captured(torch.ones(1))


@pytest.mark.parametrize(
    ("compare", "graphs"),
    [
        (lambda p: p < 0.0, 1),
        (lambda p: p >= 1, 1),
        (lambda p: p > -1.5, 1),
        (lambda p: p <= 1.0, 1),
        (lambda p: p <= 0.0, 2),
        (lambda p: p < 0.5, 2),
        (lambda p: p.sub_(1) < 0, 2),
        (lambda p: (p.sub_(1), p < 0)[1], 2),
        (lambda p: p * 2 < 0, 2),
    ],
)
def test_random_number_whose_interval_decides_a_branch(compare, graphs):
    def f(x):
        x = x + 1
        if compare(torch.rand([])):
            return x * 2
        return x - 1

    bd.counters.clear()
    captured = bd.optimize("eager")(f)
    for seed in range(4):
        torch.manual_seed(seed)
        expected = f(torch.ones(2)), torch.rand(1)
        torch.manual_seed(seed)
        torch.testing.assert_close((captured(torch.ones(2)), torch.rand(1)), expected)
    assert (bd.counters["graph_breaks"] > 0) == (graphs > 1)
