"""Quantisation-aware training: operators that resize the buffers that they write, as data says."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization as quantization
import torchstrata

CHANNELS = quantization.MovingAveragePerChannelMinMaxObserver
WHOLE = quantization.MovingAverageMinMaxObserver
MADE = {
    "fused, per channel": (
        quantization.FusedMovingAvgObsFakeQuantize,
        CHANNELS,
        torch.per_channel_symmetric,
    ),
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
        module = made(
            observer=observer, quant_min=-128, quant_max=127, dtype=torch.qint8, qscheme=scheme
        )
        call = torchstrata.compile(module, backend=backend) if compiles else module
        for step in range(3):
            x = torch.linspace(-1, 2, 12).reshape(4, 3).mul(step + 1).requires_grad_(grad)
            y = call(x)
            if grad:
                y.sum().backward()
            results.append(
                (
                    y.detach(),
                    y.requires_grad,
                    x.grad,
                    {k: v.clone() for k, v in module.state_dict().items()},
                )
            )
    torch.testing.assert_close(results[3:], results[:3])


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated")
def test_what_else_is_written_in_a_call_that_resizes() -> None:
    """The call runs anew, so nothing may have been written by then."""

    def step(quantise, x, calls, total):
        y = quantise(x)
        calls.add_(1)
        total.add_(y)
        return y

    results = []
    for call in (step, torchstrata.compile(step)):
        quantise = quantization.FusedMovingAvgObsFakeQuantize(
            observer=CHANNELS,
            quant_min=-128,
            quant_max=127,
            dtype=torch.qint8,
            qscheme=torch.per_channel_symmetric,
        )
        calls, total = torch.zeros(4, 3), torch.zeros(4, 3)
        found = [
            call(quantise, torch.linspace(-1, 2, 12).reshape(4, 3) * n, calls, total)
            for n in (1, 2, 3)
        ]
        results.append((found, calls, total))
    torch.testing.assert_close(*results)
