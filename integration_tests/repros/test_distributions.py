"""Distributions whose samplers have no meta kernel ended the graph."""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch import distributions as D

PROGRAMS = {
    "dirichlet": lambda x: D.Dirichlet(x).rsample(),
    "beta": lambda x: D.Beta(x, 2 * x).rsample(),
    "gamma": lambda x: D.Gamma(x, x).rsample(),
    "binomial": lambda x: D.Binomial(5, x.detach() / 9).sample() * x,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_draws_and_their_gradients(name):
    torchstrata.reset()
    found = []
    options = {"fallback_random": True}
    for call in (
        PROGRAMS[name],
        torchstrata.compile(PROGRAMS[name], fullgraph=True, options=options),
    ):
        torch.manual_seed(0)
        x = torch.rand(3, 4).add(0.5).requires_grad_()
        result = call(x)
        result.square().sum().backward()
        found.append((result.detach(), x.grad))
    torch.testing.assert_close(found[1], found[0])
    assert torchstrata.counters["fallbacks"] == 0
