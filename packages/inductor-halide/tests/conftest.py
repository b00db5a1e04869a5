"""Kernels from text, built and compared with the evaluator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from inductor_halide import HalideCodeGenerator
from loopir import ArtifactStore, evaluate_kernel, parse_kernel


@pytest.fixture
def build(tmp_path) -> Callable[..., Callable[..., None]]:
    """Builds one kernel."""

    def made(text: str, schedule: str = "simple") -> Callable[..., None]:
        pytest.importorskip("halide")
        generator = HalideCodeGenerator(schedule)
        source = generator.generate(parse_kernel(text))
        return generator.build([source], ArtifactStore(tmp_path / "store"))[0]

    return made


@pytest.fixture
def compare(build) -> Callable[..., None]:
    """Runs a kernel and the evaluator on copies of the same tensors."""

    def check(text: str, *tensors: torch.Tensor, sizes: tuple[int, ...] = (), **close) -> None:
        expected, actual = [t.clone() for t in tensors], [t.clone() for t in tensors]
        evaluate_kernel(parse_kernel(text), expected, sizes)
        build(text)(*actual, *sizes)
        for e, a in zip(expected, actual, strict=True):
            torch.testing.assert_close(a, e, equal_nan=True, **close)

    return check
