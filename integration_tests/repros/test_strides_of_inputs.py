"""Strides of inputs where a dimension has one element."""

from __future__ import annotations

import pytest
import torch
import torchstrata


def test_views_of_leaves_keep_their_strides():
    compiled = torchstrata.compile(lambda x: (x.stride(), x * 2), backend="eager")
    for rows in (2, 1):
        x = torch.ones(rows, 8, requires_grad=True)[:, 2:6]
        assert compiled(x)[0] == x.stride() == (8, 1)


MADE = {
    "flip": lambda x: x.flip(0),
    "put": lambda x: x.put(torch.tensor([0]), x[0, :1]),
    "expand": lambda x: x.expand(1, 4) * 1,
    "expand to more": lambda x: x.expand(1, 1, 4) * 1,
}
LAYOUTS = {
    "part": lambda: torch.ones(1, 8)[:, 2:6],
    "column": lambda: torch.ones(4, 1).t(),
    "gaps": lambda: torch.ones(2, 8)[1:, ::2],
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "torchstrata"])
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_results_keep_them(made, backend):
    torchstrata.reset()
    compiled = torchstrata.compile(made, backend=backend)
    for layout in LAYOUTS.values():
        assert compiled(layout()).stride() == made(layout()).stride()


@pytest.mark.parametrize(
    "loss", [lambda x: (x**2).sum(), lambda x: x.sum(), lambda x: (x @ torch.ones(4, 2)).sum()]
)
def test_gradients_that_accumulate(loss):
    """A gradient without gaps keeps its strides of a dimension with one element, whatever those of
    the leaf are.
    """

    def function(x):
        leaf = x.detach().clone().requires_grad_()
        loss(leaf).backward()
        return leaf

    torchstrata.reset()
    compiled = torchstrata.compile(function, backend="eager")
    for layout in LAYOUTS.values():
        assert compiled(layout()).grad.stride() == function(layout()).grad.stride()
