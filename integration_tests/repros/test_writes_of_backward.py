"""Functions of autograd and hooks that write to tensors in backward: graphs left the writes out."""

from __future__ import annotations

import pytest
import torch
import torchstrata

seen = torch.zeros(2)


class ToOutside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        seen.add_(gradient)
        return gradient * seen


class ToArgument(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, other):
        ctx.other = other
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.other.copy_(gradient.abs())
        return gradient * 2, None


class ToGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul_(3)


def hooked(x):
    y = x * 3
    y.register_hook(lambda gradient: seen.add_(gradient) * 2)
    return y * 2


def hooked_in_closure(x, held=seen):
    y = x * 3
    y.register_hook(lambda gradient: held.add_(gradient) * 2)
    return y * 2


PROGRAMS = {
    "outside": lambda x: ToOutside.apply(x),
    "argument": lambda x: ToArgument.apply(x, seen) + seen,
    "gradient": lambda x: ToGradient.apply(x),
    "hook": hooked,
    "hook in closure": hooked_in_closure,
}


def run(program, calls=3):
    seen.zero_()
    found = []
    for k in range(calls):
        x, given = torch.ones(2, requires_grad=True), torch.full((2,), k + 1.0)
        result = program(x)
        result.backward(given)
        found += [result.detach(), x.grad, given, seen.clone()]
    return found


@pytest.mark.filterwarnings("ignore:a graph runs eagerly")
@pytest.mark.parametrize("name", PROGRAMS)
def test_writes_of_backward(name):
    torchstrata.reset()
    torch.testing.assert_close(run(torchstrata.compile(PROGRAMS[name])), run(PROGRAMS[name]))


def test_a_whole_program_says_what_is_written():
    torchstrata.reset()
    compiled = torchstrata.compile(PROGRAMS["argument"], fullgraph=True)
    with pytest.raises(Exception, match=r"AG038: a backward pass writes to \w*seen"):
        compiled(torch.ones(2, requires_grad=True))
    assert torch.equal(compiled(torch.ones(2)), 2 + seen)
