"""A default device is the program's: what the compiler makes for itself lay on it, too."""

from __future__ import annotations

import pytest
import torch
import torchstrata


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
