"""Layouts that a graph is compiled for and the ones that it meets."""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch import nn


def transpose_in_place(x: torch.Tensor) -> torch.Tensor:
    x[1:3] += 1
    x.t_()
    x[0] = 5
    return x.sum(0)


def add_dimension_in_place(x: torch.Tensor) -> torch.Tensor:
    x.unsqueeze_(0)
    return x.sum(1)


@pytest.mark.parametrize("program", [transpose_in_place, add_dimension_in_place])
def test_an_input_whose_layout_changes_in_place(program):
    given = torch.randn(4, 3)
    expected = given.clone()
    torch.testing.assert_close(torchstrata.compile(program)(given), program(expected))
    assert given.stride() == expected.stride()
    torch.testing.assert_close(given, expected)


def test_an_expanded_gradient_that_has_a_gradient():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(3, 4, requires_grad=True)

    def penalty(call: nn.Module) -> tuple[torch.Tensor, ...]:
        (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        return torch.autograd.grad((gradient.norm(dim=1) - 1).square().mean(), list(model.parameters())[:3])

    torch.testing.assert_close(penalty(torchstrata.compile(model)), penalty(model))
