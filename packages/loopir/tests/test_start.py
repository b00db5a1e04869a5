"""Kernels that differ only in where they begin in a buffer are one, and compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loopir import Options, compile_graph
from loopir.host.host_program import HostProgram
from loopir.ir.program import Allocate
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace


def compiled(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor, **kwargs: bool
) -> HostProgram:
    with torch.no_grad():
        graph = trace(function, *inputs)
    codegens = {"cpu": EvaluatorCodeGenerator()}
    return compile_graph(
        graph, list(inputs), codegens=codegens, options=Options(check=True, **kwargs)
    )


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_of_a_long_concatenation_are_one_kernel(dim: int) -> None:
    inputs = [torch.randn(2, 3) for _ in range(100)]

    def run(*inputs):
        return torch.cat([x + 1 for x in inputs], dim)

    host = compiled(run, *inputs, fuse=False)
    assert (len(host.program.kernels), host.program.launch_count) == (1, 100)
    torch.testing.assert_close(host(*inputs)[0], run(*inputs))


def test_stacked_numbers_are_one_kernel() -> None:
    inputs = [torch.tensor(float(i)) for i in range(100)]
    host = compiled(lambda *inputs: torch.stack([x.sqrt() for x in inputs]), *inputs, fuse=False)
    assert (len(host.program.kernels), host.program.launch_count) == (1, 100)
    torch.testing.assert_close(host(*inputs)[0], torch.arange(100.0).sqrt())


def test_a_part_does_not_take_the_memory_of_an_operand_elsewhere() -> None:
    """A kernel that reads ``y[3:]`` and writes a result from its start on prints as if both were at
    one place.
    """

    def run(x, *others):
        y = x.cumsum(0)
        return torch.cat([y[3:10].sin(), *others])

    inputs = [torch.randn(46), *(torch.randn(1) for _ in range(39))]
    host = compiled(run, *inputs, fuse=False)
    assert not any(isinstance(step, Allocate) and step.in_place for step in host.program.steps)
    torch.testing.assert_close(host(*inputs)[0], run(*inputs))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=6), st.booleans()
)
def test_slices(places: list[tuple[int, int]], fuse: bool) -> None:
    def run(x):
        y = x * 2
        return torch.cat([y[a : a + n, a % 3 :].exp().sum(1) for a, n in places])

    x = torch.randn(12, 4)
    host = compiled(run, x, fuse=fuse)
    torch.testing.assert_close(host(x)[0], run(x))
