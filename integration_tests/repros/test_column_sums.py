"""A column sum of a value that is one number everywhere did not compile: the bias gradient of ``linear(x).sum()``."""

from __future__ import annotations

import torch

from integration_tests.repros.backend import compiled


def test_column_sum_of_a_number(tmp_path) -> None:
    x = torch.ones(()).expand(4096, 32)
    (result,) = compiled(lambda x: (x * 2).sum(0), (x,), tmp_path)(x)
    assert torch.equal(result, torch.full((32,), 8192.0))
