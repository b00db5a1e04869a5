"""Hooks of modules and tensors on gradients, hooks on saved tensors, ``.data``, selective
checkpoints.
"""

from __future__ import annotations

import copy
import functools

import bytecode_dynamo as bd
import pytest
import torch
import torch.autograd.graph as ag
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

LOG: list[object] = []


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def saved_half(x):
    with ag.saved_tensors_hooks(lambda t: (t.half(), t.dtype), lambda held: held[0].to(held[1])):
        return (x * x).sin()


def saved_nested(x):
    factor = 3.0
    with ag.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        y = x * x
        with ag.saved_tensors_hooks(lambda t: t * factor, lambda t: t):
            z = y * y
        return (y * z).sin()


def saved_on_cpu(x):
    with ag.save_on_cpu():
        return (x * x).sin()


def saved_refused(x):
    try:
        with ag.disable_saved_tensors_hooks("no hooks here"), ag.save_on_cpu():
            return x * x
    except RuntimeError as error:
        return x * x * len(str(error))


def logging_hook(x):
    y = x * 2
    y.register_hook(lambda g: LOG.append(g.sum().item()))
    return y.sin()


def kept_gradient(x):
    y = x * 2
    y.retain_grad()
    return y.sin()


def selective(policy):
    def f(x):
        return checkpoint(lambda t: t.sin().cos() * 2, x, use_reentrant=False, context_fn=policy)

    return f


POLICIES = (
    noop_context_fn,
    lambda: create_selective_checkpoint_contexts([torch.ops.aten.sin.default]),
    functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.cos.default]),
)


@pytest.mark.parametrize(
    "f",
    (
        saved_half,
        saved_nested,
        saved_on_cpu,
        saved_refused,
        logging_hook,
        kept_gradient,
        *map(selective, POLICIES),
    ),
    ids=lambda f: f.__name__,
)
def test_functions(f, check_gradients, alike):
    LOG.clear()
    check_gradients(f, lambda: (leaf(2, 3),))
    half = len(LOG) // 2
    assert alike(LOG[:half], LOG[half:])


def test_saved_tensors_hooks_around_see_no_fakes():
    seen: list[type] = []

    def pack(t):
        seen.append(type(t))
        return t

    f, x = bd.optimize("eager", fullgraph=True)(lambda x: (x * x).sin().sum()), leaf(3)
    for _ in range(2):
        with ag.saved_tensors_hooks(pack, lambda t: t):
            f(x).backward()
    assert seen and set(seen) == {torch.Tensor}


def full_hook(module):
    module[0].register_full_backward_hook(lambda m, inputs, outputs: (inputs[0] * 2,))


def logging_hooks(module):
    module[0].register_full_backward_hook(
        lambda m, inputs, outputs: LOG.append(outputs[0].sum().item())
    )
    module[2].register_full_backward_pre_hook(lambda m, outputs: (outputs[0] * 3,))


@pytest.mark.parametrize("register", (full_hook, logging_hooks), ids=lambda f: f.__name__)
def test_hooks_of_modules_on_gradients(register, alike):
    made, runs = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), []
    for compile in (lambda m: m, bd.optimize("eager", fullgraph=True)):
        module, x = copy.deepcopy(made), torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        register(module)
        LOG.clear()
        call = compile(module)
        for _ in range(2):
            call(x).sum().backward()
        call(x.detach())
        runs.append((x.grad, [p.grad for p in module.parameters()], list(LOG)))
    assert alike(*runs)
    assert bd.counters["graph_breaks"] == 0


# -- .data -----------------------------------------------------------------------------------------


def replaced(m, x):
    m.weight.data = m.weight.data * 2
    x.data = torch.ones(2, 3)
    m.bias.data.zero_()
    return m(x), x * 2


def reshaped(m, x):
    x.data = torch.ones(5)
    return x * 2, x.shape


def of_new_tensor(m, x):
    y = torch.zeros(2, 3)
    y.data = x * 2
    x.add_(1)
    return y + 1


def aliased(m, x):
    y, z = torch.zeros(2, 3), torch.ones(2, 3)
    y.data = z
    z.add_(5)
    return y, z


def converted(m, x):
    m.double()
    return m(x.double()), m.to("cpu") is m


def half_and_back(m, x):
    return m.half().float()(x)


def from_vector(m, x):
    vector = nn.utils.parameters_to_vector(m.parameters())
    nn.utils.vector_to_parameters(vector * 2, m.parameters())
    return m(x), vector


def broken(m, x):
    x.data = torch.ones(4, 3)
    y = x.sum()
    bd.graph_break()
    return y + x.shape[0], m(x)


DATA = (replaced, reshaped, of_new_tensor, aliased, converted, half_and_back, from_vector, broken)


@pytest.mark.parametrize("f", DATA, ids=lambda f: f.__name__)
def test_data(f, alike):
    made, runs = nn.Linear(3, 2), []
    for call in (f, bd.optimize("eager", fullgraph=f is not broken)(f)):
        module, x, results = copy.deepcopy(made), torch.arange(6.0).reshape(2, 3), []
        for _ in range(2):
            results.append(call(module, x))
            x = x if x.shape == (2, 3) else torch.arange(6.0).reshape(2, 3)
        runs.append((results, x, dict(module.state_dict())))
    assert alike(*runs)


def test_sizes_are_those_from_before_the_graph(check):
    check(
        lambda x: (x.transpose_(0, 1).shape, x.shape, x.unsqueeze_(0).size(1)),
        lambda: (torch.ones(3, 4),),
        dynamic=True,
    )


def test_tensors_of_numbers_in_tensors(check):
    def f(x):
        return (
            torch.tensor([x[0], x[1]]),
            torch.tensor([x[0], x[1]], dtype=torch.float64),
            isinstance(x, (int, torch.FloatTensor)),
        )

    check(f, lambda: (torch.arange(3.0),))
