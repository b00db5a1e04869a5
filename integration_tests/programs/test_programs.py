"""Generated programs have eager mode's results, effects, exceptions and gradients, in three calls with state between them."""

from __future__ import annotations

import os

import pytest

from integration_tests.programs.run import check

THOROUGH = os.environ.get("STRATA_PROFILE") == "thorough"
EAGER = range(2000 if THOROUGH else 60)
COMPILED = range(200 if THOROUGH else 6)


@pytest.mark.parametrize("seed", EAGER)
def test_captured_program_is_as_eager(seed: int) -> None:
    assert check(seed, "eager") == []


@pytest.mark.parametrize("seed", COMPILED)
def test_compiled_program_is_as_eager(seed: int) -> None:
    assert check(seed, None) == []
