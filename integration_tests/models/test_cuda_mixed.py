"""Modules with parameters in float32 that get values of 16 bits on CUDA devices, under autocast and
without it; and programs that were compiled one after the other.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch import nn

from .mixed import MODULES, check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)],
    ids=["autocast", "autocast of bfloat16", "bfloat16"],
)
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, dtype, autocast):
    check(name, "cuda", dtype, autocast)


def test_many_programs_in_one_process():
    """Their kernels have the same names, and small ones share launches."""
    sizes = (24, 40, 56)

    def step(x, *weights):
        for weight in weights:
            x = torch.tanh(x @ weight.bfloat16())
        return torch.autograd.grad(x.float().square().sum(), weights)

    for count in (2, 3, 4, 2, 3, 4):
        for size in sizes:
            compiled = torchstrata.compile(step, dynamic=False)
            x = torch.randn(8, size, device="cuda", dtype=torch.bfloat16)
            weights = [
                (torch.randn(size, size, device="cuda") / 8).requires_grad_() for _ in range(count)
            ]
            found, expected = compiled(x, *weights), step(x, *weights)
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=0.05, atol=0.05 * b.abs().max().item())


def test_dropout_after_a_product():
    """Its numbers are drawn in the product's kernel, from counters of 64 bits."""
    net = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Dropout(0.1)) for _ in range(3)])
    net, x = net.cuda(), torch.randn(1568, 512, device="cuda", requires_grad=True)
    before = torchstrata.counters["fallbacks"]
    compiled = torchstrata.compile(net, fullgraph=True)
    with torch.autocast("cuda", torch.bfloat16):
        (first,), (second,) = ([compiled(x)] for _ in range(2))
    first.float().square().mean().backward()
    assert torchstrata.counters["fallbacks"] == before
    assert not torch.equal(first, second)
    kept = (first != 0).float().mean()
    assert 0.85 < kept < 0.95


def test_masks_that_the_cpu_makes_are_recorded():
    """A copy of what the CPU makes from numbers is made on the device."""
    import inductor_triton

    def masked(x, w):
        mask = ~torch.zeros(x.shape[0], x.shape[0]).to(x.device, torch.bool)
        rows = torch.arange(x.shape[0]).unsqueeze(1).to(x.device)
        return torch.where(mask, x @ w, 0) + rows

    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    compiled, before = torchstrata.compile(masked), dict(inductor_triton.counters)
    for _ in range(6):
        torch.testing.assert_close(compiled(x, w), masked(x, w))
    assert inductor_triton.counters["replayed"] > before.get("replayed", 0)
