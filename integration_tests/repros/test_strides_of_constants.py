"""Results that are views of what the compiler knows."""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch.nn import functional as F


def repeated():
    return torch.tensor([1, 2]).float()[:1, None].expand(1, 4)


def repeated_rows():
    return torch.tensor([1, 2]).float()[:1, None].expand(3, 4)


def padded():
    return F.pad(torch.ones(2, 4), (1, 1))[:, 1:5]


def every_other():
    return F.pad(torch.ones(2, 4), (1, 1))[:, ::2]


def two_views():
    made = torch.tensor([[1, 2], [3, 4]]).float()
    return made[:, :1], made.t()


@pytest.mark.parametrize("program", [repeated, repeated_rows, padded, every_other, two_views])
def test_views_of_constants_have_eagers_strides(program):
    def layout(result):
        results = result if isinstance(result, tuple) else (result,)
        return [(x.tolist(), x.stride()) for x in results]

    compiled = torchstrata.compile(program, backend="torchstrata")
    assert layout(compiled()) == layout(program())
    assert layout(compiled()) == layout(program())
