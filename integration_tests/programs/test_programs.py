"""Generated programs have eager mode's results, effects, exceptions and gradients, in three calls
with state between them.
"""

from __future__ import annotations

import datetime
import os

import pytest

from integration_tests.programs.run import check

THOROUGH = os.environ.get("STRATA_PROFILE") == "thorough"
SHARE = float(os.environ.get("STRATA_SHARE", "1"))
DAY = datetime.date.today().toordinal() % 10 if THOROUGH else 0  # other programs every day
COUNTS = (int(2000 * SHARE), int(200 * SHARE)) if THOROUGH else (60, 6)
EAGER, COMPILED = (range(DAY * count, (DAY + 1) * count) for count in COUNTS)


@pytest.mark.parametrize("seed", EAGER)
def test_captured_program_is_as_eager(seed: int) -> None:
    assert check(seed, "eager") == []


@pytest.mark.parametrize("seed", COMPILED)
def test_compiled_program_is_as_eager(seed: int) -> None:
    assert check(seed, None) == []
