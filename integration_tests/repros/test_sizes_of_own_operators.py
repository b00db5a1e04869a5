"""Operators of one's own whose results have sizes that depend on data, without torch's tag for
them: their calls were dropped where only the size was needed.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch.library import custom_op


@custom_op("repro_sizes::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * positive(x).shape[0],
        lambda x: x.new_ones(positive(x).shape[0]),
        lambda x: (x.new_ones(positive(x).shape[0]), x.new_ones(positive(-x).shape[0])),
    ],
)
def test_only_the_size_is_used(function) -> None:
    x = torch.tensor([1.0, -2.0, 3.0, 4.0, -5.0])
    found = torchstrata.compile(function, fullgraph=True)(x)
    torch.testing.assert_close(found, function(x))
