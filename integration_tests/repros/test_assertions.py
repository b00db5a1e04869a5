"""An assertion on a tensor's values has no result: it was dropped from functional graphs, and what
it forbids went on.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchstrata


def stated(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "all must be positive")
    return x + 1


def plain(x: torch.Tensor) -> torch.Tensor:
    assert (x > 0).all(), "all must be positive"
    return x + 1


def after_a_write(x: torch.Tensor) -> torch.Tensor:
    seen.add_(1)
    if not (x > 0).all():
        raise RuntimeError("all must be positive")
    return x + 1


seen = torch.zeros(2)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("positive", [stated, plain, after_a_write])
def test_an_assertion_is_not_dropped(
    positive: Callable[[torch.Tensor], torch.Tensor], grad: bool
) -> None:
    torchstrata.reset()
    seen.zero_()
    compiled = torchstrata.compile(positive, fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3, requires_grad=grad)), torch.full((3,), 2.0))
        with pytest.raises((AssertionError, RuntimeError), match="all must be positive"):
            compiled(-torch.ones(3, requires_grad=grad))
    assert torchstrata.counters["fallbacks"] == 0
    assert seen.tolist() == ([4.0, 4.0] if positive is after_a_write else [0.0, 0.0])
