"""A third of the operator database at special values, compiled, with gradients; all of it in the
thorough profile.
"""

from __future__ import annotations

import os

import pytest
import torch
from loopir import ArtifactStore

from integration_tests.operators import special

THOROUGH = os.environ.get("STRATA_PROFILE") == "thorough"
DTYPES = (torch.float32, torch.float64) if THOROUGH else (torch.float32,)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", ["unary", "binary", "reduction", "others"])
def test_operators_at_special_values(group: str, dtype: torch.dtype, tmp_path) -> None:
    ops = special.group(group)
    assert len(ops) >= 24
    ops = ops[:: 1 if THOROUGH else 3]
    assert (
        special.differences(ops, dtype, group in ("unary", "binary"), ArtifactStore(tmp_path)) == []
    )
