"""Functions of torch that take what no graph node can have, a function or an object of settings."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchstrata

DISTANCE = torch.nn.PairwiseDistance(p=1.0)


def by_module(a, b, c):
    return F.triplet_margin_with_distance_loss(a, b, c, distance_function=DISTANCE, margin=2.0)


def by_function(a, b, c):
    def distance(x, y):
        return 1 - F.cosine_similarity(x, y)

    return F.triplet_margin_with_distance_loss(a, b, c, swap=True, distance_function=distance)


@pytest.mark.parametrize("function", [by_module, by_function])
def test_a_distance(function):
    inputs = [torch.randn(4, 5, requires_grad=True) for _ in range(3)]
    compiled = torchstrata.compile(function, fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    torch.testing.assert_close(
        torch.autograd.grad(compiled(*inputs), inputs),
        torch.autograd.grad(function(*inputs), inputs),
    )
