"""The operator database at special values, forward and gradient, compiled; float64 too in the thorough profile."""

from __future__ import annotations

import os

import pytest
import torch
from loopir import ArtifactStore

from integration_tests.operators import special

DTYPES = (torch.float32, torch.float64) if os.environ.get("STRATA_PROFILE") == "thorough" else (torch.float32,)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", ["unary", "binary", "reduction", "others"])
def test_operators_at_special_values(group: str, dtype: torch.dtype, tmp_path) -> None:
    ops = special.group(group)
    assert len(ops) >= 24
    assert special.differences(ops, dtype, group in ("unary", "binary"), ArtifactStore(tmp_path)) == []
