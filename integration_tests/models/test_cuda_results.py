"""Devices and strides of results on CUDA devices: a gradient on the CPU, and images."""

from __future__ import annotations

import pytest
import torch
import torchstrata

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_the_gradient_of_a_number_on_the_cpu():
    def filled(x, mask, value):
        return (x.masked_fill(mask, value) * 2).sum()

    x = torch.randn(5, 6, device="cuda", requires_grad=True)
    mask, value = x > 0, torch.tensor(0.5, requires_grad=True)
    compiled = torchstrata.compile(filled, fullgraph=True)
    found = torch.autograd.grad(compiled(x, mask, value), (x, value))
    expected = torch.autograd.grad(filled(x, mask, value), (x, value))
    torch.testing.assert_close(found, expected)
    assert [grad.device.type for grad in found] == ["cuda", "cpu"]


GRADIENTS = {
    "glu": lambda x: torch.nn.functional.glu(x, 1),
    "replicated": lambda x: torch.nn.functional.pad(x, (1, 2, 2, 1), mode="replicate"),
    "reflected": lambda x: torch.nn.functional.pad(x, (1, 2, 2, 1), mode="reflect"),
    "transposed": lambda x: torch.nn.functional.conv_transpose2d(
        x, x[:4], stride=2, padding=1, output_padding=1, dilation=2
    ),
    "padded as far as a stride": lambda x: torch.nn.functional.conv_transpose2d(
        x, x[:4], stride=2, padding=1, output_padding=2, dilation=3
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_strides_of_images(name):
    x = torch.randn(4, 4, 5, 6, device="cuda").to(memory_format=torch.channels_last)
    x.requires_grad_()
    compiled = torchstrata.compile(GRADIENTS[name], fullgraph=True)
    results = []
    for function in (compiled, GRADIENTS[name]):
        y = function(x)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        results.append((y, gradient))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
        assert a.stride() == b.stride()
