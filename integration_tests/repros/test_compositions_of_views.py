"""Reshapes of transposed values: every one repeated the index of the next, so that compiling 25 of
them never ended.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata


def alternating(x, n):
    for _ in range(40):
        x = x.t().reshape(n // 2, 2 * n).permute(1, 0).reshape(n, n) + 1
    return x


def windows(x, n):
    for _ in range(40):
        x = x.reshape(2, n // 2, 2, n // 2).permute(2, 1, 0, 3).reshape(n, n).roll(1, 0) * 2
    return x


@pytest.mark.parametrize("function", [alternating, pytest.param(windows, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.slow)])
def test_long_chains(function, dynamic):
    torchstrata.reset()
    compiled = torchstrata.compile(function, fullgraph=True, dynamic=dynamic)
    for n in (16, 8):
        x = torch.arange(float(n * n)).reshape(n, n)
        assert torch.equal(compiled(x, n), function(x, n))
