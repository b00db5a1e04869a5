"""Random kernels: compiled results equal the evaluator's, in 500 programs here and 50,000 in the nightly profile."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from inductor_cpp import CppCodeGenerator, find_toolchain, kernel_text
from inductor_cpp.testing import check_kernels, random_kernels, sweep
from loopir.testing.strategies import kernels


@pytest.mark.parametrize("seed", [0, 1])
def test_random_kernels_equal_evaluator(store, seed):
    failures = check_kernels(random_kernels(250, seed), CppCodeGenerator(), store)
    assert not failures, f"{len(failures)} differ\n" + "\n".join(failures[:4])


def test_random_kernels_on_every_instruction_set(store, any_isa):
    assert not check_kernels(random_kernels(60, 2), any_isa, store)


@pytest.mark.slow
def test_many_random_kernels():
    failures = [text for unit in sweep(50_000, os.cpu_count() or 1, 1000, find_toolchain()) for text in unit]
    assert not failures, f"{len(failures)} differ\n" + "\n".join(failures[:4])


@settings(max_examples=50)
@given(kernel=kernels())
def test_text_is_a_function_of_the_kernel(kernel):
    assert kernel_text(kernel) == kernel_text(kernel)
