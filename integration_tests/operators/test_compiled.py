"""A part of the operator database through the C++ back end in every dtype; all of it in the
thorough profile.

The sweep forks, which a process with threads of OpenMP must not: it runs in one of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration_tests.operators import compiled

THOROUGH = os.environ.get("STRATA_PROFILE") == "thorough"
SHARDS = 12 if THOROUGH else 1
ROOT = Path(__file__).parents[2]
CRASHING = """
import os, torch
from integration_tests.operators import compiled

torch.set_num_threads(1)
check = compiled.check
compiled.check = lambda case, store: os._exit(70) if case.sample.op.name == "sin" else check(case, store)
outcomes = compiled.sweep(compiled.pairs_of(["exp", "sin", "tanh"], ["float32"]), 1, 1, show=False)
assert [o.status for o in outcomes] == ["pass", "crash", "pass"], outcomes
assert "2 pass (66.67 %), 0 known, 0 fail, 1 crash" in compiled.table(outcomes)
"""


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    limit = None if THOROUGH else 600
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=limit
    )


@pytest.mark.parametrize("shard", range(SHARDS))
def test_operators_in_every_dtype(tmp_path, shard: int) -> None:
    names = sorted(compiled.operators())[shard :: SHARDS if THOROUGH else 100]
    log = tmp_path / "log"
    command = [
        "--ops",
        ",".join(names),
        "--samples",
        "3" if THOROUGH else "1",
        "--jobs",
        "1",
        "--log",
        str(log),
    ]
    run = _python("-m", "integration_tests.operators.compiled", *command)
    assert log.exists(), run.stderr
    outcomes = [json.loads(line) for line in log.read_text().splitlines()]
    bad = [o for o in outcomes if o["status"] in ("fail", "crash")]
    assert outcomes
    assert len(bad) <= 0.02 * len(outcomes) if THOROUGH else not bad, bad[:20]


def test_a_crash_is_the_failure_of_one_pair() -> None:
    run = _python("-c", CRASHING)
    assert run.returncode == 0, run.stderr
