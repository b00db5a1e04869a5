"""An assertion on a tensor's values has no result: it was dropped from functional graphs, and what it forbids went on."""

from __future__ import annotations

import pytest
import torch
import torchstrata


@pytest.mark.parametrize("grad", [False, True])
def test_an_assertion_is_not_dropped(grad: bool) -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "all must be positive")
        return x + 1

    compiled = torchstrata.compile(positive)
    with pytest.warns(UserWarning, match="AG033"):
        assert torch.equal(compiled(torch.ones(3, requires_grad=grad)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="all must be positive"):
        compiled(-torch.ones(3, requires_grad=grad))
