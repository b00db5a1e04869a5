"""Common operators in float32, forward and backward, through the compiled back end. All of them:
``sweep.py``.
"""

from __future__ import annotations

import os

import pytest
import torch
from loopir import ArtifactStore

from integration_tests.operators.check import check_operator
from integration_tests.operators.database import full_name, operators

COMMON = """
abs add addmm amax argmax atan2 bmm cat clamp clone cumsum diagonal div.no_rounding_mode einsum eq
erf exp expand flip floor_divide gather index_add index_put index_select isnan lerp log log_softmax
logsumexp masked_fill matmul maximum mean mul nn.functional.adaptive_avg_pool2d
nn.functional.batch_norm nn.functional.conv2d nn.functional.cross_entropy nn.functional.embedding
nn.functional.gelu nn.functional.group_norm nn.functional.layer_norm nn.functional.linear
nn.functional.max_pool2d nn.functional.pad.constant nn.functional.silu nn.functional.softplus norm
permute pow prod remainder repeat reshape roll rsqrt scatter_add sigmoid sin softmax sort split
stack std sub sum tanh topk tril unfold var where
"""
NAMES = COMMON.split()
SAMPLES = 2 if os.environ.get("STRATA_PROFILE") == "thorough" else 1


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return ArtifactStore(tmp_path_factory.mktemp("store"))


def test_names_are_in_the_database() -> None:
    assert {full_name(op) for op in operators(NAMES)} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_operator_equals_eager(name: str, store: ArtifactStore) -> None:
    for op in operators([name]):
        outcome = check_operator(op, torch.float32, "cpp", store, count=SAMPLES)
        assert outcome.status in ("pass", "extern"), outcome.reason
