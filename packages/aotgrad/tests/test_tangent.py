"""Zeros for absent gradients are made once, for a few shapes."""

import torch
from aotgrad.tangent import KeptZeros

CPU = torch.device("cpu")


def test_zeros_are_kept():
    zeros = KeptZeros()
    first = zeros((3, 4), dtype=torch.float32, device=CPU)
    assert torch.equal(first, torch.zeros(3, 4))
    assert zeros((3, 4), dtype=torch.float32, device=CPU) is first
    assert zeros((3, 4), dtype=torch.float64, device=CPU).dtype == torch.float64


def test_few_are_kept():
    zeros = KeptZeros()
    first = zeros((9,), dtype=torch.float32, device=CPU)
    for size in range(KeptZeros.KEPT):
        zeros((size,), dtype=torch.float32, device=CPU)
    assert zeros((9,), dtype=torch.float32, device=CPU) is not first
