"""Zeros for absent gradients are made once, for a few shapes."""

import pytest
import torch
from aotgrad.tracing.tangent_layout import ZerosCache, restride_like

CPU = torch.device("cpu")


def test_zeros_are_kept():
    zeros = ZerosCache()
    first = zeros((3, 4), dtype=torch.float32, device=CPU)
    assert torch.equal(first, torch.zeros(3, 4))
    assert zeros((3, 4), dtype=torch.float32, device=CPU) is first
    assert zeros((3, 4), dtype=torch.float64, device=CPU).dtype == torch.float64


def test_few_are_kept():
    zeros = ZerosCache()
    first = zeros((9,), dtype=torch.float32, device=CPU)
    for size in range(ZerosCache.KEPT):
        zeros((size,), dtype=torch.float32, device=CPU)
    assert zeros((9,), dtype=torch.float32, device=CPU) is not first


@pytest.mark.parametrize(
    "given", [torch.ones(()).expand(3, 2), torch.ones(2, 3).t(), torch.ones(3, 2)]
)
def test_a_gradient_is_laid_out_like_its_fake(given):
    for like in (torch.empty(3, 2), torch.empty(2, 3).t()):
        made = restride_like(given.requires_grad_(), like)
        assert made.stride() == like.stride()
        assert torch.equal(made, given)
        torch.autograd.grad(made.sum(), given)
