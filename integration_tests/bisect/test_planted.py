"""A search finds planted bugs; ``python -m integration_tests.bisect`` plants all sixty."""

from __future__ import annotations

import pytest

from .planted import PLANTED
from .trial import try_bug

FEW = ("gelu", "near numbers are equal", "in place at other points", "operands swap")


def test_there_are_ten_per_layer() -> None:
    assert len({bug.name for bug in PLANTED}) == len(PLANTED) == 60


@pytest.mark.parametrize("name", FEW)
def test_a_search_names_the_layer_and_the_decision(name, tmp_path) -> None:
    (bug,) = [each for each in PLANTED if each.name == name]
    outcome = try_bug(bug, tmp_path)
    assert outcome.is_decision_right, outcome.text
    assert outcome.is_small, (outcome.text, outcome.replayed)
