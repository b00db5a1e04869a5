"""Writes through expanded tensors give the value itself, not the old one plus a difference."""

from __future__ import annotations

import math

import pytest
import torch
import torchstrata


def of_one_row(x):
    x.expand(3, 4)[0] = 2
    return x * 1


def masks(x):
    x.expand_as(x).masked_fill_(x > 0, -math.inf)


def among_others(x):
    torch.broadcast_tensors(x, torch.ones(3, 4))[0][0] = 2
    return x * 1


def twice(x):
    x[:1].expand(5, 4).expand(5, 4)[2].fill_(2)
    return x * 1


PROGRAMS = {
    "tensors": among_others,
    "expanded twice": twice,
    "nothing to expand": of_one_row,
    "a mask": masks,
    "a leading dimension": lambda x: x.expand(1, 3, 4)[0, 0].add_(2),
    "broadcast": lambda x: torch.broadcast_to(x, (3, 4))[1].mul_(3),
    "filled": lambda x: x[:1].expand(5, 4).fill_(7),
    "a row of one": lambda x: x[:1].expand(5, 4)[2].add_(7),
    "a row of a result": lambda x: (x * 2)[:1].expand(5, 4)[2].add_(7),
}


@pytest.mark.parametrize("value", [1.0, math.nan, -math.inf, 3e8])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_value_that_is_written(name, value):
    torchstrata.reset()
    x, y = torch.full((3, 4), value), torch.full((3, 4), value)
    expected, result = PROGRAMS[name](x), torchstrata.compile(PROGRAMS[name])(y)
    torch.testing.assert_close((y, result), (x, expected), equal_nan=True, rtol=0, atol=0)
    assert torchstrata.counters["fallbacks"] == 0


SCATTERS = {
    "select": lambda x, y: torch.select_scatter(x, y[0], 0, 1),
    "slice": lambda x, y: torch.slice_scatter(x, y[:1], 0, 1, 2),
    "diagonal": lambda x, y: torch.diagonal_scatter(x, y[0]),
    "as_strided": lambda x, y: torch.as_strided_scatter(x, y[:2, :2], (2, 2), (1, 2), 0),
}


@pytest.mark.parametrize("name", SCATTERS)
@pytest.mark.parametrize("dim", [0, 1])
def test_scatters_to_expanded(name: str, dim: int) -> None:
    """The result has memory of its own for each element."""
    x = torch.arange(3.0).unsqueeze(dim).expand(3, 3)
    y = torch.arange(9.0).reshape(3, 3) + 10
    found = torchstrata.compile(SCATTERS[name], fullgraph=True)(x, y)
    expected = SCATTERS[name](x, y)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()
