"""Operators called by keyword and in inference mode, through the whole stack: a part of the
database, and all of it in the thorough profile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from integration_tests.operators.database import operators
from integration_tests.operators.forms import BASES, check_form

ROOT = Path(__file__).parents[2]
NAMES = """
add cat cumsum einsum gather index_put index_select lerp linalg.solve matmul masked_fill narrow
nn.functional.batch_norm nn.functional.conv2d nn.functional.cross_entropy nn.functional.dropout
nn.functional.interpolate.bilinear nn.functional.layer_norm nn.functional.max_pool2d
nn.functional.pad.constant nn.functional.scaled_dot_product_attention permute reshape scatter_add
softmax sort split_list_args std sum tensor_split to topk unfold where
""".split()
COMPILED = ["add", "index_put", "nn.functional.cross_entropy", "sum"]
SHARDS = 12


def _failures(names: list[str], form: str, backend: str | None, cache: Path) -> list[str]:
    options = None if backend else {"cache_dir": str(cache)}
    outcomes = [check_form(op, torch.float32, form, 1, backend, options) for op in operators(names)]
    assert sum(o.samples for o in outcomes) >= len(names) / 8  # few have methods in place
    return [o.reason for o in outcomes if o.status not in ("pass", "skip")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", BASES)
def test_operators_equal_eager(form: str, tmp_path: Path) -> None:
    assert _failures(NAMES, form, "aot_eager", tmp_path) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", BASES)
def test_compiled_operators_equal_eager(form: str, tmp_path: Path) -> None:
    assert _failures(COMPILED, form, None, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_what_passes_by_position_passes_in_each_form(shard: int, tmp_path: Path) -> None:
    names = ",".join(sorted({op.name for op in operators()})[shard::SHARDS])
    passed = {}
    for form in {*BASES.values(), *BASES}:
        log = tmp_path / form
        command = ["-m", "integration_tests.operators.sweep", "--samples", "2", "--form", form]
        subprocess.run(
            [sys.executable, *command, "--ops", names, "--json", str(log)],
            cwd=ROOT,
            env=os.environ | {"STRATA_CACHE_DIR": str(tmp_path / "cache")},
        )
        outcomes = [json.loads(line) for line in log.read_text().splitlines()]
        passed[form] = {o["op"] for o in outcomes if o["status"] in ("pass", "known", "skip")}
    lost = {form: passed[base] - passed[form] for form, base in BASES.items()}
    assert not any(lost.values()), lost
