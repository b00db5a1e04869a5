"""Quotients on CUDA devices where the last bit decides: before rounding to integers, comparisons
and positions. And results that are on another device than the operands.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
JUMPS = {
    "floor of a quotient": lambda a, b: torch.floor(a / b),
    "rounded by a number": lambda a, b: torch.round(a / 3 + b / 7),
    "floor division": lambda a, b: a // b,
    "floor division by a number": lambda a, b: a // 3 + b // 0.1,
    "remainder": lambda a, b: (a % b, torch.remainder(a, 3), torch.fmod(b, 0.1)),
    "comparisons": lambda a, b: ((a / b) * b == a, a / 3 <= b / 3, a / b >= 1.0),
    "integers": lambda a, b: ((a / b).int(), (a / 10).long(), (1 / b).to(torch.int16)),
    "positions": lambda a, b: ((a / b).argmax(-1), (b / 49).argmin(0), (a / 3).sort(-1).indices),
    "buckets": lambda a, b: torch.bucketize(a / 5, torch.linspace(-9, 9, 19, device=a.device)),
    "statistics": lambda a, b: torch.where(a / b > b / 3, a / b, b).ceil(),
    "a ratio of sums": lambda a, b: torch.floor(a.abs() * 4 / (b.abs() * 2)).sum(-1),
}
NARROW = ("floor of a quotient", "integers", "positions", "buckets", "statistics")
"""Of one rounding ahead of each jump; between others, results of 16 bits stay wider."""
CASES = [(name, dtype) for name in JUMPS for dtype in (torch.float32, torch.float64)]


@pytest.mark.parametrize(("name", "dtype"), CASES + [(name, torch.bfloat16) for name in NARROW])
def test_jumps(name, dtype):
    """The same bits as in eager mode."""
    whole = torch.arange(-4096, 4096, device="cuda").reshape(64, 128)
    a, b = whole.to(dtype), (whole % 251 - 125).to(dtype)
    b[b == 0] = 1
    compiled = torchstrata.compile(JUMPS[name], fullgraph=True)
    found, expected = compiled(a, b), JUMPS[name](a, b)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


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
