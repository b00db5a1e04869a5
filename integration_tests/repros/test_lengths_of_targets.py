"""``ctc_loss`` with lengths as lists, which ATen's composite writes into a tensor."""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch.nn.functional import ctc_loss

LENGTHS = [7, 9, 8], [3, 0, 4]


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_lists(reduction: str, zero_infinity: bool) -> None:
    def loss(scores, targets):
        scores = scores.log_softmax(-1)
        return ctc_loss(scores, targets, *LENGTHS, reduction=reduction, zero_infinity=zero_infinity)

    targets = torch.tensor([[1, 2, 3, 1], [1, 1, 1, 1], [2, 2, 2, 2]])
    check(loss, torch.randn(9, 3, 5), targets)


def test_one_sequence() -> None:
    def loss(scores, targets):
        return ctc_loss(scores.log_softmax(-1), targets, [6], [3])

    check(loss, torch.randn(6, 5), torch.tensor([1, 2, 2]))


def check(loss, scores: torch.Tensor, targets: torch.Tensor) -> None:
    found, expected = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    result = torchstrata.compile(loss, fullgraph=True)(found, targets)
    wanted = loss(expected, targets)
    torch.testing.assert_close(result, wanted)
    result.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)
