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


def devices(x, device):
    made = torch.zeros(2, device=device)
    return (
        made.device,
        made.device == torch.device("cpu"),
        made.device == device,
        x.device == device,
        x.to(device).device,
    )


def test_a_number_of_the_cpu():
    compiled, x = torchstrata.compile(devices, fullgraph=True), torch.ones(2)
    for name in ("cpu", "cpu:0"):
        device = torch.device(name)
        assert compiled(x, device) == devices(x, device)
