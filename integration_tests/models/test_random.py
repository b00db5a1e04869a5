"""Dropout: eager's statistics with our generator, eager's numbers with ``fallback_random``."""

from __future__ import annotations

import copy

import pytest
import torch
import torchstrata

from integration_tests.models.zoo import Encoder
from integration_tests.rule import train_step


@pytest.fixture(autouse=True)
def fresh_compiler():
    torchstrata.reset()
    with torchstrata.config.patch(fallback="error", verify="contracts"):
        yield


def test_dropout_keeps_the_expected_share_and_scale() -> None:
    p = 0.3
    compiled = torchstrata.compile(lambda x: torch.nn.functional.dropout(x, p))
    x = torch.ones(64, 4096)
    torch.manual_seed(0)
    first, second = compiled(x), compiled(x)
    kept = first != 0
    deviation = (p * (1 - p) / x.numel()) ** 0.5
    assert abs(kept.float().mean().item() - (1 - p)) < 6 * deviation
    torch.testing.assert_close(first[kept], torch.full_like(first[kept], 1 / (1 - p)))
    assert not torch.equal(first, second)
    rows = kept.float().mean(dim=1)
    assert rows.std().item() < 2 * (p * (1 - p) / x.shape[1]) ** 0.5
    torch.manual_seed(0)
    assert torch.equal(compiled(x), first)


def test_backward_sees_the_mask_of_forward() -> None:
    compiled = torchstrata.compile(lambda x: torch.nn.functional.dropout(x.exp(), 0.5) * 3)
    x = torch.randn(32, 64, requires_grad=True)
    y = compiled(x)
    y.sum().backward()
    dropped = y == 0
    assert 0.3 < dropped.float().mean() < 0.7
    assert torch.equal(x.grad == 0, dropped)


@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
def test_fallback_random_equals_eager(training: bool) -> None:
    torch.manual_seed(0)
    model = Encoder(p=0.2).train()
    compiled = torchstrata.compile(copy.deepcopy(model), options={"fallback_random": True})
    x = torch.randn(4, 12, 64)
    results = []
    for call, module in ((compiled, compiled), (model, model)):
        torch.manual_seed(7)
        results.append(train_step(call, module, (x,)) if training else {"output": call(x).detach()})
    for name, value in results[0].items():
        torch.testing.assert_close(
            value, results[1][name], rtol=2e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
