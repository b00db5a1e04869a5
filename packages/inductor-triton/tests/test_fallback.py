"""Kernels that do not compile with the blocks chosen, with a pretended compiler."""

from __future__ import annotations

import pytest
import torch
from inductor_triton import Config, generate_source, launch_spec
from inductor_triton.launching.fallback import BlockSizeWarning, KernelError, compilable, smaller
from inductor_triton.launching.interpret import interpreted
from loopir import BuildError, parse_kernel

ROWS = """
@kernel(device='cuda')
def rows(x: In('float32', 4000), out: Out('float32', 4)):
    for i in range(4):
        for r in reduce(1000):
            a = load(x, [1000*i + r], 'float32')
            m = reduce('sum', a, 'float32')
        store(out, [i], m)
"""


def compiler(limit):
    def compile_part(part):
        config = launch_spec(part).config
        if config.x * config.y * config.r > limit:
            raise BuildError(f"out of registers: {config}")

    return compile_part


def test_smaller_blocks_are_used_with_one_warning():
    pytest.importorskip("triton")
    source = generate_source(parse_kernel(ROWS), Config(x=4, r=1024, persistent=True))
    with pytest.warns(BlockSizeWarning, match="rows, rows did not compile") as caught:
        made, again = compilable([source, source], compiler(300))
    assert len(caught) == 1
    assert made.text == again.text != source.text
    x, out = torch.randn(4000), torch.empty(4)
    interpreted(made)(x, out)
    torch.testing.assert_close(out, x.view(4, 1000).sum(1))


def test_what_compiles_stays():
    source = generate_source(parse_kernel(ROWS))
    assert compilable([source], compiler(10**6)) == [source]


def test_nothing_compiles():
    with pytest.raises(KernelError, match="rows compiles with no block size: .*out of registers"):
        compilable([generate_source(parse_kernel(ROWS))], compiler(0))


def test_configurations_shrink():
    for config in (
        Config(x=4096),
        Config(x=256, y=128, r=64, num_stages=4, num_warps=8),
        Config(x=1, r=32768, num_warps=16),
    ):
        steps = list(smaller(config))
        sizes = [c.x * c.y * c.r * c.num_stages for c in (config, *steps)]
        assert steps and sizes == sorted(sizes, reverse=True)
    assert next(smaller(Config(x=1, r=4096, num_warps=16, grid=132))) == Config(
        x=1, r=4096, num_warps=16
    )
