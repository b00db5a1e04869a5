"""Sums over rows: of one number everywhere (the bias gradient of ``linear(x).sum()``), and about a
mean over rows.
"""

from __future__ import annotations

import torch

from integration_tests.repros.backend import compiled


def test_column_sum_of_a_number(tmp_path) -> None:
    x = torch.ones(()).expand(4096, 32)
    (result,) = compiled(lambda x: (x * 2).sum(0), (x,), tmp_path)(x)
    assert torch.equal(result, torch.full((32,), 8192.0))


def test_squares_about_the_mean_of_columns(tmp_path) -> None:
    """They were summed beside the rows before their mean was known."""

    def function(x):
        rows = x.softmax(1)
        mean = rows.mean(0)
        return mean, (rows - mean).square().sum(0)

    x = torch.randn(256, 64)
    for found, expected in zip(compiled(function, (x,), tmp_path)(x), function(x)):
        torch.testing.assert_close(found, expected)
