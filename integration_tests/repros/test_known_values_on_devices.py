"""Numbers that a program writes out stay known when their tensor is on another device."""

from __future__ import annotations

import pytest
import torch
import torchstrata

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


def positions(x, start):
    """Positions pooled as Funnel does, behind one of its own."""
    position = torch.arange(0, 8, device=x.device)
    own = position.new_tensor([start])
    pooled = torch.cat([own, position[1:-1]])[::2]
    return x[pooled.clamp(min=0)] + pooled[:, None]


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_beside_a_range(device):
    x = torch.rand(8, 3, device=device)
    compiled = torchstrata.compile(positions, fullgraph=True)
    assert torch.equal(compiled(x, -3), positions(x, -3))
