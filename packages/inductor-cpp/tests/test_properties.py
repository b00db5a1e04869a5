"""Random kernels: compiled results equal the evaluator's, in 500 programs here and 50,000 in the
thorough profile.
"""

from __future__ import annotations

import datetime
import os

import pytest
import torch
from hypothesis import given, settings
from inductor_cpp import CppCodeGenerator, find_toolchain, kernel_text
from inductor_cpp.testing import sweep
from loopir import evaluate_kernel, parse_kernel
from loopir.testing.conditioning import unexplained
from loopir.testing.differential import check_kernels, random_kernels
from loopir.testing.strategies import kernels


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_kernels_equal_evaluator(store, seed):
    failures = check_kernels(random_kernels(250, seed), CppCodeGenerator(), store)
    assert not failures, f"{len(failures)} differ\n" + "\n".join(failures[:4])


def test_random_kernels_on_every_instruction_set(store, any_isa):
    assert not check_kernels(random_kernels(60, 2), any_isa, store)


@pytest.mark.slow
def test_many_random_kernels():
    """All of them where STRATA_SHARE is not set, else other ones every day."""
    count = int(50_000 * float(os.environ.get("STRATA_SHARE", "1")))
    first = 1000 * (1 + datetime.date.today().toordinal() % 10)
    units = list(sweep(count, os.cpu_count() or 1, first, find_toolchain()))
    failures, excused = ([text for unit in units for text in unit[part]] for part in (0, 1))
    assert not failures, f"{len(failures)} differ\n" + "\n".join(failures[:4])
    assert len(excused) < 50


ILL_CONDITIONED = """
@kernel(device='cpu', vector='r0')
def kernel0(in0: In('float32', 3000), out0: Out('float32', 3), out1: Out('float32', 3)):
    for p0 in range(3):
        for r0 in reduce(1000):
            v = load(in0, [1000*p0 + r0], 'float32')
            k = constant(1e6, 'float32')
            w = mul(v, k)
            t = reduce('sum', w, 'float32')
        y = sin(t)
        store(out0, [p0], y)
        z = abs(t)
        store(out1, [p0], z)
"""


def test_ill_conditioned_results_are_told_from_wrong_ones():
    kernel = parse_kernel(ILL_CONDITIONED)
    inputs = [torch.linspace(-3, 2, 3000), torch.zeros(3), torch.zeros(3)]
    expected = [tensor.clone() for tensor in inputs]
    evaluate_kernel(kernel, expected)
    other = [expected[0], -expected[1], expected[2]]
    assert unexplained(kernel, inputs, [], other, expected, 1e-4, 1e-3) is None
    worse = [expected[0], expected[1], expected[2] * 1.01]
    assert "out1[0]" in str(unexplained(kernel, inputs, [], worse, expected, 1e-4, 1e-3))


@settings(max_examples=50)
@given(kernel=kernels())
def test_text_is_a_function_of_the_kernel(kernel):
    assert kernel_text(kernel) == kernel_text(kernel)
