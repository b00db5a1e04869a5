"""The evaluators of programs and of lowered graphs agree with what is built."""

from __future__ import annotations

import loopir
import primops
import pytest
import torch
from loopir import Options
from primops.testing import trace


def _sums(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = (x @ y).exp()
    return z.softmax(1), z.t().contiguous() + 1, z[:, ::2].sum(0)


@pytest.fixture
def graph() -> torch.fx.GraphModule:
    return primops.decompose(trace(_sums, torch.randn(4, 6), torch.randn(6, 8)))


@pytest.mark.parametrize("options", [Options(), Options(fuse=False, reuse=False, inline=False)])
def test_a_program_means_what_the_graph_means(graph, options) -> None:
    inputs = [torch.randn(4, 6), torch.randn(6, 8)]
    lowered = loopir.lower(graph, options)
    expected = primops.evaluate(graph, inputs)
    for actual in (
        loopir.evaluate_lowered(lowered, inputs),
        loopir.evaluate_program(loopir.schedule(loopir.lower(graph, options), options), inputs),
    ):
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b)


def test_memory_that_is_reused_too_early_shows() -> None:
    text = """# loopir.program 1, loopir.kernel 1, primops.graph 6
@kernel(device='cpu', vector='x0')
def kernel0(in0: In('float32', 16), out0: Out('float32', 16)):
    for x0 in range(16):
        v0 = load(in0, [15 - x0], 'float32')
        store(out0, [x0], v0)

def program(in_x: f32[16]):
    buf0: f32[16] = allocate()
    launch(kernel0, in_x, buf0)
    buf1: f32[16] = allocate(reuses=buf0, in_place=True)
    launch(kernel0, buf0, buf1)
    return (buf1,)
"""
    program = loopir.parse_program(text)
    x = torch.arange(16.0)
    (result,) = loopir.evaluate_program(program, [x])
    assert not torch.equal(result, x)
