"""The rule over several draws: scatter passes, errors that are really larger do not."""

from __future__ import annotations

import pytest
import torch

from integration_tests.rule import assert_draws_by_rule, draw_errors

EPS = torch.finfo(torch.float32).eps


def scatter(
    seed: int, factor: float = 1.0, draws: int = 16, elements: int = 6
) -> list[tuple[float, float]]:
    """Largest errors of a tensor of a few elements, compiled's ``factor`` times eager's spread."""
    found = 1e-5 * torch.randn(
        draws, 2, elements, generator=torch.Generator().manual_seed(seed)
    ).abs().amax(-1)
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


def test_a_maximum_that_goes_the_other_way_passes() -> None:
    draws = [(1000 * ours if i < 4 else ours, own) for i, (ours, own) in enumerate(scatter(0))]
    assert_draws_by_rule(draws, EPS)


def test_one_wrong_draw_is_found() -> None:
    with pytest.raises(AssertionError, match="largest error"):
        assert_draws_by_rule([(0.2, 1e-5), *scatter(0)], EPS)


def test_values_that_are_not_finite_are_found() -> None:
    x = torch.ones(3)
    with pytest.raises(AssertionError, match="not finite"):
        draw_errors(x / 0, x, x.double())
