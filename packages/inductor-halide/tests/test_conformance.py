"""loopir's conformance kit and its random kernels."""

from __future__ import annotations

import pytest
from inductor_halide import HalideCodeGenerator
from loopir import parse_kernel
from loopir.testing import CASES, check_code_generator
from loopir.testing.differential import check_kernels, random_kernels

GENERATOR = HalideCodeGenerator()


def test_takes_most_of_the_kit():
    taken = [case for case in CASES if GENERATOR.supports(parse_kernel(case.text))]
    assert len(taken) >= 0.95 * len(CASES)


def test_part_of_the_kit():
    pytest.importorskip("halide")
    assert check_code_generator(GENERATOR, cases=CASES[::12]).passed > 35


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["simple", "Mullapudi2016"])
def test_whole_kit(schedule):
    pytest.importorskip("halide")
    report = check_code_generator(HalideCodeGenerator(schedule))
    assert report.refused <= 0.05 * report.cases


def test_random_kernels():
    pytest.importorskip("halide")
    taken = [kernel for kernel in random_kernels(16, 3) if GENERATOR.supports(kernel)]
    assert len(taken) > 10
    assert check_kernels(taken, GENERATOR, None) == []  # type: ignore[arg-type]
