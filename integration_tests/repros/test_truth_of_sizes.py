"""Comparisons of sizes joined by ``&`` and ``|`` are numbers of a graph."""

from __future__ import annotations

import pytest
import torch
import torchstrata


def returned(x):
    rows, columns = x.shape
    return x * 2, (rows > 2) & (columns < 9), (rows == 3) | (columns < 9) | (rows + columns > 20)


def computed_with(x):
    rows, columns = x.shape
    either = (rows == 3) | (columns < 9)
    return torch.where(
        torch.full((), either), x, x * torch.scalar_tensor(either & (columns > 1))
    ) + torch.sym_not(either)


def of_counts(x):
    count = x.nonzero().shape[0]
    few = (count > 2) & (count < 20)
    return x + few, few | (count == 0)


@pytest.mark.parametrize("program", [returned, computed_with, of_counts])
def test_a_truth_of_sizes_is_a_number(monkeypatch, program):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")
    compiled = torchstrata.compile(program, dynamic=True, fullgraph=True)
    for shape in ((3, 4), (5, 12), (2, 9)):
        x = torch.ones(shape)
        torch.testing.assert_close(compiled(x), program(x))
