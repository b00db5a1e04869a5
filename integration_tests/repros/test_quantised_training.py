"""Quantisation-aware training: operators that resize the buffers that they write, as data says."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization as quantization
import torchstrata

CHANNELS = quantization.MovingAveragePerChannelMinMaxObserver
WHOLE = quantization.MovingAverageMinMaxObserver
MADE = {
    "fused, per channel": (quantization.FusedMovingAvgObsFakeQuantize, CHANNELS, torch.per_channel_symmetric),
    "fused": (quantization.FusedMovingAvgObsFakeQuantize, WHOLE, torch.per_tensor_symmetric),
    "per channel": (quantization.FakeQuantize, CHANNELS, torch.per_channel_symmetric),
    "whole": (quantization.FakeQuantize, WHOLE, torch.per_tensor_symmetric),
}


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated")
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("backend", ["aot_eager", "torchstrata"])
@pytest.mark.parametrize("grad", [False, True])
def test_fake_quantisation(name: str, backend: str, grad: bool) -> None:
    made, observer, scheme = MADE[name]
    torchstrata.reset()
    results = []
    for compiles in (False, True):
        module = made(observer=observer, quant_min=-128, quant_max=127, dtype=torch.qint8, qscheme=scheme)
        call = torchstrata.compile(module, backend=backend) if compiles else module
        for step in range(3):
            x = torch.linspace(-1, 2, 12).reshape(4, 3).mul(step + 1).requires_grad_(grad)
            y = call(x)
            if grad:
                y.sum().backward()
            results.append((y.detach(), y.requires_grad, x.grad, {k: v.clone() for k, v in module.state_dict().items()}))
    torch.testing.assert_close(results[3:], results[:3])
