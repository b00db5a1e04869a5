"""Operators that refuse their data after writing in part: a call that runs again starts from the
state before them.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

from .outcome import outcome


def accumulate(x, index, y):
    x.index_put_((index,), y, accumulate=True)


def add_rows(x, index, y):
    x.index_add_(0, index, y)


def scatter(x, index, y):
    x.scatter_add_(0, index[:, None].expand(-1, 4), y)


@pytest.mark.parametrize("write", [accumulate, add_rows, scatter])
@pytest.mark.parametrize("backend", ["eager", None])
def test_rows_written_before_the_failure_are_written_once(write, backend) -> None:
    seen = []
    for run in (write, torchstrata.compile(write, backend=backend)):
        x = torch.zeros(3, 4)
        seen.append((outcome(run, x, torch.tensor([0, 2, 7]), torch.ones(3, 4)), x))
    assert seen[0][0] == seen[1][0]
    assert torch.equal(seen[0][1], seen[1][1])
