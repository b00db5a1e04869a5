"""Devices with and without a number are one where tensors on them are."""

from __future__ import annotations

import torch
import torchstrata
from symshapes import FakeTensorMode, ShapeEnv


def test_a_device_without_a_number_is_the_current_one():
    with FakeTensorMode(ShapeEnv()):
        x, y = torch.ones(2, device="cuda"), torch.ones(2, device="cuda:0")
        assert (x + y).device == x.device == y.device == torch.device("cuda", 0)
        assert torch.ones(2, device="cpu:0").device == torch.device("cpu")


def test_a_number_of_the_cpu():
    def f(x):
        return x + torch.ones(2, device="cpu:0"), torch.zeros(2, device=torch.device("cpu", 0)).device == x.device

    total, same = torchstrata.compile(f, fullgraph=True)(torch.ones(2))
    assert torch.equal(total, torch.full((2,), 2.0)) and same
