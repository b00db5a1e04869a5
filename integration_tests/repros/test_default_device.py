"""A default device is the program's: what the compiler makes for itself lay on it, too."""

from __future__ import annotations

import contextlib

import bytecode_dynamo
import pytest
import torch
import torchstrata
from torch.utils._device import set_device
from torch.utils._pytree import tree_leaves


def pointwise(x):
    return (x.half() * 0.5).clamp(-0.3, 0.7).float() + x.histc(4, -1, 1).sum()


def reduced(x):
    return torch.softmax(x, -1).cumsum(-1) / x.amax()


def through_numpy(x):
    return torch.from_numpy(x.detach().numpy().reshape(-1, 2).T.copy()) * 2


def drawn(x):
    state = torch.get_rng_state()
    noise = torch.randn(x.shape, device="cpu")
    torch.set_rng_state(state)
    return x + 0 * noise


def trained(x):
    return (torch.nn.functional.gelu(x) @ x.T).square().sum()


@pytest.mark.parametrize("f", [pointwise, reduced, through_numpy, drawn, trained])
def test_programs_with_tensors_elsewhere(f):
    torchstrata.reset()
    found = []
    for call in (f, torchstrata.compile(f)):
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_(f is trained)
        with torch.device("meta"):
            result = call(x)
            if f is trained:
                result.backward(torch.ones((), device="cpu"))
        found.append((result, x.grad))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert torchstrata.counters["fallbacks"] == 0


def entered(x):
    with torch.device("meta"):
        inner = torch.zeros(2), torch.ones(2, device="cpu")
        with torch.device("cpu"):
            innermost = torch.zeros(2)
    return inner, innermost, torch.zeros(2), x + 1


def around_a_break(x):
    with torch.device("meta"):
        before = torch.zeros(2)
        torchstrata.graph_break()
        after = torch.zeros(2)
    return before, after, torch.zeros(2), x + 1


@set_device("meta")
def decorated(x):
    return torch.zeros(2), x + 1


def refused(x):
    with torch.device("meta"):
        torchstrata.graph_break()
    return x


def devices(result):
    return [leaf.device if isinstance(leaf, torch.Tensor) else leaf for leaf in tree_leaves(result)]


@pytest.mark.parametrize("outer", [None, "with", "set"])
@pytest.mark.parametrize("f", [entered, around_a_break, decorated])
def test_devices_that_a_program_enters(f, outer):
    """A device entered and left inside of one graph was lost: its tensors were on the CPU."""
    torchstrata.reset()
    compiled = torchstrata.compile(f, backend="eager", fullgraph=f is not around_a_break)
    x = torch.ones(2)
    torch.set_default_device("meta" if outer == "set" else None)
    try:
        with torch.device("meta") if outer == "with" else contextlib.nullcontext():
            for _ in range(2):
                result, expected = compiled(x), f(x)
                assert devices(result) == devices(expected)
                assert torch.equal(result[-1], expected[-1])
    finally:
        torch.set_default_device(None)


def test_a_refused_program_leaves_no_device():
    torchstrata.reset()
    with pytest.raises(bytecode_dynamo.Unsupported):
        torchstrata.compile(refused, backend="eager", fullgraph=True)(torch.ones(2))
    assert torch.zeros(2).device.type == "cpu"
