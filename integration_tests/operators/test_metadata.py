"""Fakes have the metadata of real results in every layout: common operators, and the whole database
in the thorough profile.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from integration_tests.operators.database import operators
from integration_tests.operators.layouts import LAYOUTS
from integration_tests.operators.metadata import differences

NAMES = """
add cat gather ldexp logaddexp2 logit nn.functional.batch_norm nn.functional.binary_cross_entropy
nn.functional.conv2d nn.functional.cross_entropy nn.functional.glu nn.functional.hardtanh
nn.functional.layer_norm nn.functional.pad.reflect nn.functional.relu softmax special.xlog1py sum
view_copy where
""".split()
SHARDS = 8


def _found(op: Any, layout: str) -> list[str]:
    dtypes = [d for d in (torch.float32, torch.bfloat16) if op.supports_dtype(d, "cpu")]
    return [line for dtype in dtypes for line in differences(op, dtype, layout)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_common_operators(layout: str) -> None:
    assert [line for op in operators(NAMES) for line in _found(op, layout)] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_operators(layout: str, shard: int) -> None:
    assert [line for op in operators()[shard::SHARDS] for line in _found(op, layout)] == []
