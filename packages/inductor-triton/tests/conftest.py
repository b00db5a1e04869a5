"""Fixtures: running a kernel's text through the interpreter against loopir's evaluator."""

from __future__ import annotations

import pytest
import torch
from inductor_triton import Config, compile_ptx, generate_source
from loopir import check_kernel, evaluate_kernel, parse_kernel


def compare(actual: torch.Tensor, expected: torch.Tensor, ulps: float) -> None:
    """Equal, or for floats within ``ulps`` units in the last place of the larger of the value and 1e-30; NaN equals NaN."""
    assert actual.dtype == expected.dtype
    if not expected.dtype.is_floating_point:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
        return
    epsilon = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(actual, expected, rtol=ulps * epsilon, atol=1e-30, equal_nan=True)


@pytest.fixture
def run():
    """``run(text, *tensors, ...)`` checks every tensor after the launch and returns the source."""
    pytest.importorskip("triton")
    from inductor_triton.interpret import interpreted

    def check(text: str, *tensors: torch.Tensor, sizes=(), ulps: float = 4, config: Config | None = None, ptx=()) -> str:
        kernel = parse_kernel(text)
        check_kernel(kernel)
        source = generate_source(kernel, config)
        expected = [tensor.clone() for tensor in tensors]
        actual = [tensor.clone() for tensor in tensors]
        evaluate_kernel(kernel, expected, sizes)
        interpreted(source)(*actual, *sizes)
        for got, wanted in zip(actual, expected):
            compare(got, wanted, ulps)
        for capability in ptx:
            assert f".target sm_{capability}" in compile_ptx(source, capability)
        return source.text

    return check
