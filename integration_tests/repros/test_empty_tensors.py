"""Programs whose tensors have no elements, in some calls or in all."""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn import functional as F

from .outcome import outcome

LOSSES = [
    F.mse_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.l1_loss,
    F.binary_cross_entropy_with_logits,
    F.soft_margin_loss,
]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_of_losses(loss, rows, reduction):
    """Meta kernels of losses divided by the number of elements, and gave gradients the strides of
    the operands.
    """

    def function(x, target):
        value = loss(x, target, reduction=reduction)
        return value, *torch.autograd.grad(value, x, torch.ones_like(value))

    given = torch.linspace(0, 1, 4 * rows).reshape(4, rows).t()
    for found, expected in zip(
        torchstrata.compile(function, fullgraph=True)(given.clone().requires_grad_(), given + 1),
        function(given.clone().requires_grad_(), given + 1),
    ):
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert not rows or found.stride() == expected.stride()


@pytest.mark.parametrize("offset", [0, 2, 5, -2, -5])
def test_diagonals_of_what_may_be_empty(offset):
    def function(x, first):
        return x[first:].diagonal(offset) * 2

    x = torch.arange(12.0).reshape(3, 4)
    for first in range(4):
        torchstrata.reset()
        found = torchstrata.compile(function, dynamic=True, fullgraph=True)(x, first)
        assert found.tolist() == function(x, first).tolist()


def test_a_scan_whose_last_batch_is_empty():
    """Mamba's associative scan of 16 steps: one operand of a product has no elements, the other one
    a symbolic size of 0.
    """

    def scan(a, b):
        return associative_scan(
            lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b), dim=1, combine_mode="generic"
        )

    torchstrata.reset()
    compiled = torchstrata.compile(scan, fullgraph=True, backend="aot_eager")
    for rows, steps in ((2, 12), (3, 16), (4, 20), (5, 16)):
        a, b = torch.rand(2, rows, steps, 3).unbind()
        torch.testing.assert_close(compiled(a, b), scan(a, b))
    assert not torchstrata.counters["fallbacks"]


@pytest.mark.parametrize(
    "reduce", [torch.amax, torch.argmin, lambda x, dim: x.max(dim)[0], torch.median]
)
@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_an_extreme_of_none_that_nobody_reads(reduce, backend):
    """The graph was for any size of the difference of two others, and the dead operator that eager
    mode refuses went.
    """

    def function(x, first):
        reduce(x[first:], 0)
        return x + 1

    torchstrata.reset()
    compiled = torchstrata.compile(function, backend=backend)
    for rows, first in ((4, 1), (6, 2), (7, 3), (5, 5), (3, 3), (8, 2)):
        x = torch.ones(rows, 4)
        assert str(outcome(compiled, x, first)) == str(outcome(function, x, first))


@pytest.mark.parametrize("rows", [3, 0])
def test_arrays_without_elements_have_no_steps(rows):
    def function(x):
        y = torch.from_numpy(x.numpy() + 1)
        return y, list(y.stride()), torch.as_tensor(x.detach().numpy()).stride()

    torchstrata.reset()
    found, expected = (
        torchstrata.compile(function, backend="eager")(torch.ones(rows, 4)),
        function(torch.ones(rows, 4)),
    )
    assert found[1:] == expected[1:] and found[0].stride() == expected[0].stride()
