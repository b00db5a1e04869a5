"""Attention with biases on a GPU: every length, form of mask and gradient runs as one compiled
graph.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torchstrata

from integration_tests.rule import assert_by_rule, relative_errors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BATCH, HEADS, WIDTH = 2, 4, 32
LENGTHS = (7, 11, 22, 34, 51, 197, 1025)
Masks = dict[str, Callable[[int], torch.Tensor]]
MASKS: Masks = {
    "whole": lambda n: torch.randn(BATCH, HEADS, n, n, device="cuda"),
    "one for all": lambda n: torch.randn(n, n, device="cuda"),
    "one for all heads": lambda n: torch.randn(BATCH, 1, n, n, device="cuda"),
    "one for the batch": lambda n: torch.randn(1, HEADS, n, n, device="cuda"),
    "expanded": lambda n: torch.randn(BATCH, 1, 1, n, device="cuda").expand(BATCH, HEADS, n, n),
    "padding": lambda n: (torch.arange(n, device="cuda") < n - 2).expand(BATCH, 1, n, n),
    "transposed": lambda n: torch.randn(HEADS, n, n, device="cuda").transpose(-1, -2),
    "sliced": lambda n: torch.randn(BATCH, HEADS, n, n + 3, device="cuda")[..., :n],
}
PROGRAMS = {
    "given": lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask),
    "by keyword": lambda q, k, v, mask: F.scaled_dot_product_attention(
        query=q, key=k, value=v, attn_mask=mask
    ),
    "computed": lambda q, k, v, mask: F.scaled_dot_product_attention(
        q, k, v, mask.logical_not() if mask.dtype is torch.bool else mask * 2
    ),
    "expanded inside": lambda q, k, v, mask: F.scaled_dot_product_attention(
        q, k, v, mask[..., :1, :].expand(q.shape[0], q.shape[1], q.shape[2], -1)
    ),
}


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


def _run(program, inputs, weight):
    leaves = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
    result = program(*leaves)
    found = [result.detach()]
    if any(x.requires_grad for x in leaves):
        # cuDNN's backward keeps the strides of the gradient that it saw first for a shape (torch
        # 2.11 gives wrong gradients for others, in eager mode too): as models do, the heads are put
        # beside each other first.
        (result.transpose(1, 2).flatten(2).double() * weight).sum().backward()
        found += [x.grad for x in leaves if x.requires_grad]
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("grad", ["none", "inputs", "bias"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask, program, grad, dtype):
    call = torchstrata.compile(PROGRAMS[program], fullgraph=True, dynamic=False)
    for length in LENGTHS:
        torch.manual_seed(0)
        bias = MASKS[mask](length)
        if bias.dtype is torch.bool and grad == "bias":
            continue
        bias = bias if bias.dtype is torch.bool else bias.to(dtype)
        qkv = [
            torch.randn(BATCH, length, HEADS, WIDTH, device="cuda", dtype=dtype).transpose(1, 2)
            for _ in range(3)
        ]
        inputs = [x.requires_grad_(grad != "none") for x in qkv] + [
            bias.requires_grad_(grad == "bias")
        ]
        weight = torch.randn(BATCH, length, HEADS * WIDTH, device="cuda", dtype=torch.float64)
        exact = _run(
            PROGRAMS[program],
            [
                x if x.dtype is torch.bool else x.detach().double().requires_grad_(x.requires_grad)
                for x in inputs
            ],
            weight,
        )
        eager = _run(PROGRAMS[program], inputs, weight)
        ours = _run(call, inputs, weight)
        # where a mask isn't dense, eager multiplies matrices, and ours calls a kernel that rounds
        # otherwise
        usual = max(
            4 * torch.finfo(dtype).eps,
            *relative_errors(dict(enumerate(eager)), dict(enumerate(exact))).values(),
        )
        for number, (a, b, c) in enumerate(zip(ours, eager, exact, strict=True)):
            assert_by_rule(a, b, c, f"length {length}, result {number}", usual)
    assert not torchstrata.counters["fallbacks"]
