"""A deterministic part of the operator database; all of it with ``nox -s opinfo`` and in the
thorough profile.
"""

from __future__ import annotations

import os

import pytest

from packages.aotgrad.tests.opinfo import (
    EXPLAINED,
    check_operator,
    differentiable_operators,
    full_name,
    table,
)

OPERATORS = {full_name(op): op for op in differentiable_operators()}
THOROUGH = os.environ.get("STRATA_PROFILE") == "thorough"
PART = sorted(set(OPERATORS) - set(EXPLAINED))[:: 1 if THOROUGH else 16]


@pytest.mark.parametrize("name", PART)
def test_operator(name):
    op = OPERATORS[name]
    for order in (1, 2) if op.supports_gradgrad else (1,):
        outcome = check_operator(op, order, 4 if THOROUGH else 1)
        assert outcome.status != "failure", outcome.reason


def test_exceptions_are_few_and_named():
    assert EXPLAINED.keys() <= OPERATORS.keys()
    assert len(EXPLAINED) <= 0.02 * len(OPERATORS)


def test_the_table_counts():
    outcome = check_operator(OPERATORS["exp"], 1, 1)
    assert "| first | 1 | 1 | 1 | 0 | 0 |" in table([outcome])
