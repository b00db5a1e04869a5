"""A part of the operator database through the C++ back end in every dtype; all of it in the nightly profile."""

from __future__ import annotations

import os

from integration_tests.operators import compiled

NIGHTLY = os.environ.get("STRATA_PROFILE") == "nightly"


def test_operators_in_every_dtype() -> None:
    names = sorted(compiled.operators())[:: 1 if NIGHTLY else 100]
    jobs = os.cpu_count() or 1 if NIGHTLY else 1
    outcomes = compiled.sweep(compiled.pairs_of(names), 3 if NIGHTLY else 1, jobs)
    bad = [o for o in outcomes if o.status in ("fail", "crash")]
    assert len(bad) <= 0.02 * len(outcomes) if NIGHTLY else not bad, bad[:20]


def test_a_crash_is_the_failure_of_one_pair(monkeypatch) -> None:
    check = compiled.check
    monkeypatch.setattr(compiled, "check", lambda c, store: os._exit(70) if c.sample.op.name == "sin" else check(c, store))
    outcomes = compiled.sweep(compiled.pairs_of(["exp", "sin", "tanh"], ["float32"]), 1, 1, show=False)
    assert [o.status for o in outcomes] == ["pass", "crash", "pass"]
    assert "2 pass (66.67 %), 0 known, 0 fail, 1 crash" in compiled.table(outcomes)
