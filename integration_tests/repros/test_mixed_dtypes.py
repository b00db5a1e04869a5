"""Values in bfloat16 meet parameters in float32: group norms ran eagerly, since the shape rule of
their gradient promoted dtypes, and losses of two dtypes had another dtype than in eager mode.
"""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
import torchstrata

from integration_tests.models.mixed import MODULES, check


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, autocast):
    check(name, "cpu", torch.bfloat16, autocast)


@pytest.mark.parametrize("loss", [F.huber_loss, F.soft_margin_loss, F.mse_loss, F.smooth_l1_loss])
def test_losses(loss):
    def each(a, b):
        return [loss(a, b, reduction=reduction) for reduction in ("none", "mean", "sum")]

    compiled = torchstrata.compile(each, fullgraph=True)
    dtypes = torch.bfloat16, torch.float32, torch.float64
    for first, second in itertools.permutations(dtypes, 2):
        a, b = torch.randn(64).to(first), torch.randn(64).sign().to(second)
        torch.testing.assert_close(compiled(a, b), each(a, b))
