"""The rule over several draws: scatter passes, errors that are really larger do not."""

from __future__ import annotations

import pytest
import torch

from integration_tests.rule import assert_draws_by_rule, draw_errors

EPS = torch.finfo(torch.float32).eps


def scatter(seed: int, factor: float = 1.0, draws: int = 12, elements: int = 6) -> list[tuple[float, float]]:
    """Largest errors of a tensor of a few elements, compiled's ``factor`` times eager's spread."""
    found = 1e-5 * torch.randn(draws, 2, elements, generator=torch.Generator().manual_seed(seed)).abs().amax(-1)
    return [(factor * ours, own) for ours, own in found.tolist()]


def test_scatter_passes() -> None:
    for seed in range(500):
        assert_draws_by_rule(scatter(seed), EPS)


def test_larger_errors_are_found() -> None:
    def found(seed: int) -> bool:
        try:
            assert_draws_by_rule(scatter(seed, 2.5), EPS)
        except AssertionError:
            return True
        return False

    assert sum(map(found, range(500))) > 450


def test_one_wrong_draw_is_found() -> None:
    draws = scatter(0)
    with pytest.raises(AssertionError, match="error"):
        assert_draws_by_rule([(5 * max(own for _, own in draws), draws[0][1]), *((0.0, own) for _, own in draws[1:])], EPS)


def test_values_that_are_not_finite_are_found() -> None:
    x = torch.ones(3)
    with pytest.raises(AssertionError, match="not finite"):
        draw_errors(x / 0, x, x.double())
