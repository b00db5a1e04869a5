"""Gradients of a loss for a tangent of 1, computed by forward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from aotgrad import aot_function, run_eager
from aotgrad.testing import check_against_eager

ROWS, CLASSES = 64, 5000


def make(dtype=torch.float32):
    torch.manual_seed(0)
    target = torch.randint(CLASSES, (ROWS,))
    target[3] = -100
    return torch.randn(ROWS, CLASSES, dtype=dtype, requires_grad=True), target


def compiled(f=F.cross_entropy, **choices):
    """``f`` compiled, and the partitions that it got."""
    partitions: list[str] = []

    def listen(name, text):
        if name == "partition":
            partitions.append(text)

    call = aot_function(
        f, forward_compiler=run_eager, unit_gradients=True, on_artifact=listen, **choices
    )
    return call, partitions


@pytest.mark.parametrize("tangent", [1.0, 0.3, 0.0])
def test_gradient_is_scaled(tangent):
    call, partitions = compiled()
    x, target = make()
    (actual,) = torch.autograd.grad(call(x, target), x, torch.tensor(tangent))
    (expected,) = torch.autograd.grad(F.cross_entropy(x, target), x, torch.tensor(tangent))
    torch.testing.assert_close(actual, expected)
    assert partitions[0].startswith("partition unit gradients")


def test_like_eager():
    check_against_eager(F.cross_entropy, make, compiled=compiled()[0])


def test_writes_between_forward_and_backward_and_a_second_backward():
    call, _ = compiled()
    x, target = make()
    (expected,) = torch.autograd.grad(F.cross_entropy(x, target), x)
    loss = call(x, target)
    with torch.no_grad():
        x.zero_()
    for _ in range(2):
        (actual,) = torch.autograd.grad(loss, x, retain_graph=True)
        torch.testing.assert_close(actual, expected)
        actual.fill_(7)


def test_gradient_of_the_gradient():
    call, _ = compiled()
    x, target = make()
    found = []
    for loss in (call, F.cross_entropy):
        (first,) = torch.autograd.grad(loss(x, target), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), x)[0])
    torch.testing.assert_close(*found)


def weighted(x, target):
    return F.cross_entropy(x @ x.t() @ x, target)


def convolved(x, target):
    images = x.detach().view(64, 625, 8).sin()
    return F.cross_entropy(
        F.conv1d(images, x.view(512, 625, 1)), target[:, None].expand(ROWS, 8) % 512
    )


def two(x, target):
    return F.cross_entropy(x, target), x.exp().sum()


def vector(x, target):
    return F.cross_entropy(x, target, reduction="none")


@pytest.mark.parametrize("f", [weighted, convolved, two, vector])
def test_only_cheap_losses(f):
    """Products and convolutions would be made without need, another tangent may have any value, and
    rows have one each.
    """
    call, partitions = compiled(f)
    check_against_eager(f, make, compiled=call)
    assert all(text.startswith("partition min_cut") for text in partitions)


def test_not_in_the_range_of_float16_and_not_by_default():
    call, partitions = compiled()
    call(*make(torch.float16))
    assert partitions[0].startswith("partition min_cut")
    partitions.clear()
    aot_function(
        F.cross_entropy, forward_compiler=run_eager, on_artifact=lambda n, t: partitions.append(t)
    )(*make())
    assert not any(text.startswith("partition unit") for text in partitions)
