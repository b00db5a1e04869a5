"""A diagonal of the swap matrix; ``python -m integration_tests.seams.matrix`` runs all of it."""

from __future__ import annotations

import importlib.util

import pytest

from integration_tests.models.zoo import ZOO
from integration_tests.seams.matrix import run_cell

DIAGONAL = [
    ("ours", "theirs", "plain C"),
    ("theirs", "ours", "evaluator"),
    ("export", "theirs", "cpp"),
    ("ours", "ours", "halide"),
    ("theirs", "theirs", "cpp"),
    ("ours", "ours", "inductor"),
]
SMALL = [entry for entry in ZOO if entry.name in ("mlp", "dlrm")]


@pytest.mark.parametrize(("capture", "autograd", "generator"), DIAGONAL)
def test_layers_can_be_swapped(capture: str, autograd: str, generator: str) -> None:
    if generator == "halide" and importlib.util.find_spec("halide") is None:
        pytest.skip("needs halide")
    cell = run_cell(capture, autograd, generator, SMALL)
    assert not cell.refused and len(cell.ran) == len(SMALL)
