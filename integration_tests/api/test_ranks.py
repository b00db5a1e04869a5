"""Ranks that start together on an empty cache: one compiles, the others load."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RANKS = 4
PROGRAM = """
import torch, torchstrata
from integration_tests.api.test_saved_programs import made
model, inputs = made("gpt")
call = torchstrata.compile(model, options={"verify": False, "fallback": "error"})
call(*inputs).sum().backward()
print(torchstrata.counters["cache_misses"], torchstrata.counters["cache_hits"])
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="counts calls of g++")
def test_each_kernel_is_compiled_once(tmp_path):
    compiler, log = tmp_path / "g++", tmp_path / "log"
    compiler.write_text(f"""#!/bin/sh
case "$*" in *-shared*) echo compiled >> {log};; esac
exec {shutil.which("g++")} "$@"
""")
    compiler.chmod(0o755)
    environment = os.environ | {
        "STRATA_CXX": str(compiler), "STRATA_CACHE_DIR": str(tmp_path / "cache"),
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM],
            stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )
        for _ in range(RANKS)
    ]  # fmt: skip
    counts = [tuple(map(int, rank.communicate()[0].split())) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS
    libraries = list((tmp_path / "cache").glob("??/*.so"))
    assert libraries and len(log.read_text().split()) == len(libraries)
    assert sum(hits > 0 for _, hits in counts) == RANKS - 1
