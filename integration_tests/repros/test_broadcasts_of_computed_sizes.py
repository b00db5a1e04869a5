"""A size that is computed from another one, and is 1 in this call: the dim is repeated."""

from __future__ import annotations

import pytest
import torch
import torchstrata

PROGRAMS = {
    "half": lambda x, y: y > x.chunk(2)[0],
    "all but": lambda x, y: y + x[1:],
    "whole": lambda x, y: (y * x.chunk(2)[0]).sum(1),
    "expanded": lambda x, y: x[1:].expand(y.shape).contiguous(),
    "product": lambda x, y: x[1:].unsqueeze(2) @ y.unsqueeze(1),
    "where": lambda x, y: torch.where(x[1:] > 0, y, -y),
    "written": lambda x, y: y.clone().copy_(x[1:]),
    "reduced": lambda x, y: x[1:].sum(0, keepdim=True) + x[1:].softmax(0) + y,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_values(program, requires_grad):
    """The dim was taken to be as long as what it was broadcast to: elements beyond it were read."""
    torchstrata.reset()
    compiled = torchstrata.compile(program, dynamic=True)
    for rows in (2, 3, 5):
        x, y = (
            torch.randn(2, 4).requires_grad_(requires_grad),
            torch.randn(rows, 4).double().float(),
        )
        found, expected = compiled(x, y), program(x, y)
        torch.testing.assert_close(found, expected)
        if requires_grad and expected.requires_grad:
            pair = (torch.autograd.grad(r.square().sum(), x)[0] for r in (found, expected))
            torch.testing.assert_close(*pair)
    assert not torchstrata.counters["fallbacks"]


def test_after_calls_with_other_sizes():
    torchstrata.reset()
    compiled = torchstrata.compile(lambda x, y: y > x.chunk(2)[0])
    for rows, columns in ((4, 2), (6, 3), (2, 2), (2, 5)):
        x, y = torch.randn(rows, 4).t().contiguous().t(), torch.randn(columns, 4).double()
        assert torch.equal(compiled(x, y), y > x.chunk(2)[0])
