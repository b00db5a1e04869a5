"""Writes inside of vmap at positions that are tensors ended the graph, which then ran eagerly."""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch.func import vmap


def row(x, k):
    x[k] = x[k] * 2


def number(x, k):
    x[k] = 1.0


def behind_others(x, k):
    x[1, k] = x[k, 0]


def before_a_slice(x, k):
    x[-k, :2] = x[k, 2:]


def twice(x, k):
    x[k, k] = x[0, 1]


def around_a_slice(x, k):
    x.expand(2, 4, 4).clone()[k % 2, :, k] = x[:, 0]
    x[k, None] = x[1:2]


def last(x, k):
    x[..., k] = x[0] * 2


def augmented(x, k):
    x[k] += x[0, 0]


@pytest.mark.parametrize(
    "write", [row, number, behind_others, before_a_slice, twice, around_a_slice, last, augmented]
)
def test_writes_to_items_of_a_batch(write):
    def program(x, k):
        def of_one(one, at):
            made = one.clone()
            write(made, at)
            return made

        return vmap(of_one)(x, k)

    torchstrata.reset()
    compiled = torchstrata.compile(program, fullgraph=True)
    for positions in ([0, 3, 1], [2, 2, 0]):
        x, k = torch.randn(3, 4, 4), torch.tensor(positions)
        torch.testing.assert_close(compiled(x, k), program(x, k))
    assert torchstrata.counters["fallbacks"] == 0
