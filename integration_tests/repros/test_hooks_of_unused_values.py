"""Hooks on values that take no part in what goes backward: eager mode never calls them."""

from __future__ import annotations

import pytest
import torch
import torchstrata


def scaled(x, seen):
    y = x * 2
    y.register_hook(lambda g: seen.append(g) or g * 3)
    return x * 3, y


def dropped(x, seen):
    y = x * 2
    y.register_hook(lambda g: seen.append(g) or g * 3)
    return (x * 3,)


def written(x, seen):
    x[0] = 1
    y = x * 2
    y.register_hook(lambda g: seen.append(g) or g * 3)
    return (x,)


def used(x, seen):
    y = x * 2
    y.register_hook(lambda g: seen.append(g) or g * 3)
    return (y.sin() + x,)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "torchstrata"])
@pytest.mark.parametrize(
    "program", [scaled, dropped, written, used], ids=lambda program: program.__name__
)
def test_gradients_and_calls_are_eagers(program, backend) -> None:
    found = []
    for call in (program, torchstrata.compile(program, backend=backend)):
        leaf, seen = torch.ones(3, requires_grad=True), []
        call(leaf * 1, seen)[0].sum().backward()
        found.append((leaf.grad, seen))
    torch.testing.assert_close(found[1], found[0])
