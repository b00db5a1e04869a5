"""Random kernels: compiled results equal the evaluator's. One compiler run per example, so an example is a list of kernels."""

from __future__ import annotations

import os

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inductor_cpp import CppCodeGenerator, kernel_text
from loopir import evaluate_kernel, format_kernel
from loopir.testing.conformance import Case, make_inputs
from loopir.testing.strategies import kernels

NIGHTLY = os.environ.get("STRATA_PROFILE") == "nightly"


@settings(max_examples=400 if NIGHTLY else 3)
@given(programs=st.lists(kernels(max_extent=40), min_size=60, max_size=125))
def test_random_kernels_equal_evaluator(store, programs):
    generator = CppCodeGenerator()
    launches = generator.build([generator.generate(kernel) for kernel in programs], store)
    for kernel, launch in zip(programs, launches, strict=True):
        sizes = [5] * len(kernel.sizes)
        case = Case("random", format_kernel(kernel), limits={"*": (-3, 3)})
        tensors = make_inputs(case, kernel, sizes, "cpu")
        expected = [tensor.clone() for tensor in tensors]
        evaluate_kernel(kernel, expected, sizes)
        launch(*tensors, *sizes)
        for buffer, actual, wanted in zip(kernel.buffers, tensors, expected, strict=True):
            torch.testing.assert_close(
                actual, wanted, rtol=1e-4, atol=1e-3, equal_nan=True, msg=lambda m, k=case.text, b=buffer.name: f"{b}: {m}\n{k}"
            )


@settings(max_examples=50)
@given(kernel=kernels())
def test_text_is_a_function_of_the_kernel(kernel):
    assert kernel_text(kernel) == kernel_text(kernel)
