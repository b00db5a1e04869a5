"""Infinities, NaN, signed zeros and denormals: what comparisons and sums of eager's kernels make of
them.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import torchstrata

INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


def check(function, *inputs):
    results = []
    for call in (function, torchstrata.compile(function, fullgraph=True)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        result = call(*leaves)
        results.append((result, torch.autograd.grad(result, leaves, torch.ones_like(result))))
    torch.testing.assert_close(*results, equal_nan=True)


@pytest.mark.parametrize("function", [F.elu, F.selu, F.celu])
def test_gradients_of_exponential_units_at_nan(function):
    check(function, torch.tensor([NAN, -1.0, 0.0, -0.0, INF, -INF]))


def test_logit_at_signed_zeros():
    check(torch.logit, torch.tensor([-0.0, 0.0, 1.0, 0.5, NAN]))
    check(lambda x: torch.logit(x, 0.0), torch.tensor([-0.0, 0.0, 1.0, 0.5, NAN]))


@pytest.mark.parametrize("function", [torch.std_mean, torch.var_mean])
@pytest.mark.parametrize("x", [[INF, 1.0, 2.0], [1.0, -INF, 2.0], [1.0, NAN, INF, 3.0], [3.0, 3.0]])
def test_moments_of_infinities(function, x):
    x = torch.tensor(x)
    torch.testing.assert_close(torchstrata.compile(function)(x), function(x), equal_nan=True)


def test_margins_that_are_no_number_do_not_count():
    x = torch.tensor([[NAN, 1.0, 0.5, 2.0], [INF, 1.0, INF, -INF]])
    check(lambda x: F.multi_margin_loss(x, torch.tensor([1, 0]), reduction="none"), x)
    check(
        lambda x: F.multilabel_margin_loss(
            x, torch.tensor([[1, 2, -1, 0], [0, 3, 2, -1]]), reduction="none"
        ),
        x,
    )


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, INF])
def test_distances_of_infinities(p):
    x = torch.tensor([[INF, 1.0], [INF, 2.0], [NAN, 0.0], [0.0, -INF], [1.0, 3.0]])
    check(lambda x: torch.cdist(x, x.flip(0), p=p), x)
    check(lambda x: torch.pdist(x, p=p), x)


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_volumes_sampled_at_no_place(mode, padding_mode):
    x, grid = torch.arange(64.0).reshape(1, 1, 4, 4, 4), torch.zeros(1, 4, 1, 1, 3)
    grid[0, 0, 0, 0, 0], grid[0, 1, 0, 0, 1], grid[0, 2, 0, 0, 2] = NAN, INF, -INF

    def sample(x, grid):
        return F.grid_sample(x, grid, mode=mode, padding_mode=padding_mode, align_corners=False)

    check(sample, x, grid)


@pytest.mark.parametrize("function", [torch.remainder, torch.fmod])
def test_remainders_of_denormals_are_exact(function):
    """Eager's vector loop makes them NaN; its scalar loop is right."""
    x, y = torch.tensor([1.0, -3.5, 1e-40, 30.0]), torch.tensor([1e-45, 3e-42, 3e-45, -1e-41])
    expected = torch.stack([function(a, b) for a, b in zip(x.double(), y.double())]).float()
    torch.testing.assert_close(torchstrata.compile(function)(x, y), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["max", "min", "median", "nanmedian"])
@pytest.mark.parametrize("incoming", [1.0, math.inf, math.nan])
@pytest.mark.parametrize("is_nan", [False, True])
def test_gradients_of_extremes_are_0_elsewhere(name, incoming, is_nan):
    """Shares that are not finite were multiplied by the mask: autograd's formula for CUDA, which
    was traced.
    """

    def run(call):
        x = torch.tensor([1.0, math.nan if is_nan else 3.0, 3.0, 2.0, 1.0]).requires_grad_()
        call(x).backward(torch.tensor(incoming))
        return x.grad

    function = getattr(torch, name)
    torch.testing.assert_close(
        run(torchstrata.compile(lambda x: function(x))), run(function), equal_nan=True
    )


@pytest.mark.parametrize("limits", [("min",), ("max",), ("min", "max")], ids=" ".join)
def test_clamping_by_numbers_that_become_nan(limits):
    def function(x, limit):
        return (
            x.clamp(**dict(zip(limits, (limit, 2.0)))),
            x.clamp_min(limit),
            x.half().clamp(**{limits[0]: limit}),
        )

    x = torch.tensor([1.0, -2.0, math.nan, math.inf])
    torchstrata.reset()
    compiled = torchstrata.compile(function, fullgraph=True)
    for limit in (0.5, math.nan, 1.5, math.nan):
        for found, expected in zip(compiled(x, limit), function(x, limit)):
            torch.testing.assert_close(found, expected, equal_nan=True)
