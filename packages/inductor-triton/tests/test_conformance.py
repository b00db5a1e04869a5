"""loopir's conformance kit, through the interpreter, with the default blocks and with ones that
force other structures.
"""

from __future__ import annotations

import ast

import pytest
from inductor_triton import Config, TritonCodeGenerator, generate_source
from inductor_triton.kernels.heuristics import next_power_of_two
from inductor_triton.kernels.indexing import integer
from loopir import Kernel, KernelSource, parse_kernel, product
from loopir.testing import CASES, check_code_generator


class Looped(TritonCodeGenerator):
    """Small blocks; every reduction is a loop."""

    def generate(self, kernel: Kernel) -> KernelSource:
        return generate_source(kernel, Config(x=8, y=4, r=16))


class Persistent(TritonCodeGenerator):
    """Odd numbers of rows per program; every reduction of a known size is one block."""

    def generate(self, kernel: Kernel) -> KernelSource:
        extent = integer(product(item.extent for item in kernel.reduction))
        if not kernel.reduction or not extent:
            return generate_source(kernel, Config(x=16, y=8, r=8))
        return generate_source(kernel, Config(x=2, r=next_power_of_two(extent), persistent=True))


def test_conformance():
    pytest.importorskip("triton")
    assert check_code_generator(TritonCodeGenerator(device="cpu", interpret=True)).passed > 400


def is_structured(text: str) -> bool:
    """Whether blocks can make a difference; one float type is enough to see it."""
    return text.count(" for ") > 1 and "float64" not in text and "float16" not in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Looped, Persistent])
def test_conformance_of_other_structures(kind):
    pytest.importorskip("triton")
    cases = [
        case for case in CASES if is_structured(case.text) and not case.name.startswith("long")
    ]
    assert check_code_generator(kind(device="cpu", interpret=True), cases=cases).passed > 50


def reduced_pairs(text: str) -> list[str]:
    """The reductions of several blocks at once in a source."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [
        ast.unparse(call)
        for call in calls
        if ast.unparse(call.func) == "tl.reduce" and isinstance(call.args[0], ast.Tuple)
    ]


def test_no_kernel_reduces_a_pair():
    """On an H200, Triton 3.6 returns positions of other values for a pair that becomes scalars; the
    interpreter doesn't.
    """
    assert reduced_pairs("tl.reduce((a, b), 0, f)")
    cases = [case for case in CASES if "reduce('arg" in case.text or "exp(" in case.text]
    assert len(cases) > 10
    for case in cases:
        source = TritonCodeGenerator().generate(parse_kernel(case.text))
        assert not reduced_pairs(source.text), case.name
