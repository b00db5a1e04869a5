"""An operator that refuses its data after writes to what carries gradients, or to operands of
several dtypes.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch.nn import functional as F

from .outcome import outcome

FAR = torch.tensor([7])


def far_row(x, w, log):
    log.append("before")
    x.mul_(3)
    y = x[FAR]
    log.append("after")
    return y


def weighted(x, w, log):
    log.append("before")
    x.mul_(w)
    y = x[FAR]
    log.append("after")
    return y


def product(x, w, log):
    log.append("before")
    x.mul_(3)
    y = F.linear(x, torch.eye(4, dtype=torch.float64))
    log.append("after")
    return y


def product_with_vector(x, w, log):
    log.append("before")
    x.mul_(3)
    y = x @ torch.ones(4, dtype=torch.float64)
    log.append("after")
    return y


def convolution(x, w, log):
    log.append("before")
    x.mul_(3)
    y = F.conv1d(x[None, None, 0], torch.ones(1, 1, 2, dtype=torch.float64))
    log.append("after")
    return y


def normalized(x, w, log):
    log.append("before")
    x.mul_(3)
    y = F.layer_norm(x, (4,), w.double())
    log.append("after")
    return y


def product_of_bools(x, w, log):
    log.append("before")
    x.mul_(3)
    y = (x > 0) @ (x > 0).T
    log.append("after")
    return y


def bool_subtracted(x, w, log):
    log.append("before")
    x.mul_(3)
    y = w - True
    log.append("after")
    return y


def largest_of_none(x, w, log):
    log.append("before")
    x.mul_(3)
    y = w[:0].max()
    log.append("after")
    return y


def softmax_of_integers(x, w, log):
    log.append("before")
    x.mul_(3)
    y = torch.arange(3).softmax(0)
    log.append("after")
    return y


def another_layout(x, w, log):
    log.append("before")
    x.unsqueeze_(0).transpose_(0, 1)
    y = w[torch.tensor([7])]
    log.append("after")
    return y


def more_memory(x, w, log):
    log.append("before")
    x.detach().resize_(90, 90)
    y = w[torch.tensor([7])]
    log.append("after")
    return y


PROGRAMS = [
    far_row, weighted, product, product_with_vector, convolution, normalized, product_of_bools,
    bool_subtracted,
    largest_of_none, softmax_of_integers, another_layout, more_memory,
]  # fmt: skip
INPUTS = {
    "plain": lambda leaf: torch.ones(2, 4),
    "with history": lambda leaf: leaf * 2,
    "view with history": lambda leaf: (leaf.repeat(2, 1) * 2)[1:3],
}


def observe(call, make):
    leaf, weight, log = (
        torch.ones(2, 4, requires_grad=True),
        torch.full((4,), 2.0, requires_grad=True),
        [],
    )
    x = make(leaf)
    result = outcome(call, x, weight, log)
    if x.requires_grad:
        x.sum().backward()
    return repr((result, log, x.detach(), x.requires_grad, leaf.grad, weight.grad))


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_effects_and_gradients_are_eagers(program, kind, backend):
    expected = observe(program, INPUTS[kind])
    compiled = torchstrata.compile(program, backend=backend)
    assert [observe(compiled, INPUTS[kind]) for _ in range(2)] == [expected] * 2


def expanded(x, y):
    x.add_(1)
    y.mul_(2)


def test_write_to_an_expanded_input_is_refused_after_others():
    results = []
    for call in (expanded, torchstrata.compile(expanded, backend="eager")):
        x = torch.zeros(3)
        results.append((outcome(call, x, torch.ones(1).expand(4)), x.tolist()))
    assert results[0] == results[1] == (RuntimeError, [1.0, 1.0, 1.0])
