"""Random kernels round-trip and verify; random programs equal eager however they are fused."""

import os

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loopir import check_kernel, evaluate_kernel, format_kernel, parse_kernel
from loopir.testing.strategies import kernels

from packages.loopir.tests.programs import tensor_programs
from packages.loopir.tests.sweep import check_static, check_symbolic

THOROUGH = os.environ.get("STRATA_PROFILE") == "thorough"
SHARE = float(os.environ.get("STRATA_SHARE", "1"))


@given(kernels())
def test_kernels_round_trip(kernel):
    text = format_kernel(kernel)
    assert parse_kernel(text) == kernel
    assert format_kernel(parse_kernel(text)) == text


@given(kernels(), st.integers(1, 6))
def test_kernels_verify_and_evaluate(kernel, size):
    check_kernel(kernel)
    tensors = []
    for buffer in kernel.buffers:
        numel = int(buffer.numel.subs({s: size for s in kernel.sizes}))
        tensors.append((torch.rand(numel) * 4).to(buffer.dtype))
    evaluate_kernel(kernel, tensors, [size for _ in kernel.sizes])


@settings(max_examples=int(40_000 * SHARE) if THOROUGH else 200)
@given(tensor_programs())
def test_programs_equal_eager_fused_or_not(program):
    check_static(program)


@settings(max_examples=int(10_000 * SHARE) if THOROUGH else 80)
@given(tensor_programs(sizes=(2, 3, 6)))
def test_programs_with_symbolic_sizes_equal_eager(program):
    check_symbolic(program)
