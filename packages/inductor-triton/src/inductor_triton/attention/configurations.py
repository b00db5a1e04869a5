"""Tiles of the attention kernels, by dtype and size of a row."""

from __future__ import annotations

from math import gcd

import torch

from inductor_triton.spec import Config

from .problem import SMALLEST, Problem

FORWARD, KEYS, QUERIES = "forward", "keys", "queries"
"""The kernels: the result; the gradients of key and value; the gradient of query."""
_HALF: dict[str, tuple[tuple[int, Config], ...]] = {
    FORWARD: (
        (64, Config(x=64, y=128, num_warps=4, num_stages=3)),
        (128, Config(x=64, y=128, num_warps=8, num_stages=3)),
        (256, Config(x=32, y=64, num_warps=4, num_stages=3)),
    ),
    KEYS: (
        (64, Config(x=128, y=64, num_warps=8, num_stages=3)),
        (128, Config(x=64, y=64, num_warps=4, num_stages=3)),
        (256, Config(x=32, y=64, num_warps=4, num_stages=1)),
    ),
    QUERIES: (
        (64, Config(x=64, y=128, num_warps=8, num_stages=3)),
        (128, Config(x=64, y=64, num_warps=4, num_stages=3)),
        (256, Config(x=32, y=64, num_warps=4, num_stages=1)),
    ),
}
_SINGLE: dict[str, tuple[tuple[int, Config], ...]] = {
    name: (
        (64, Config(x=32, y=64, num_warps=4, num_stages=2)),
        (128, Config(x=32, y=32, num_warps=4, num_stages=2)),
        (256, Config(x=16, y=16, num_warps=4, num_stages=1)),
    )
    for name in (FORWARD, KEYS, QUERIES)
}


def configuration(kernel: str, problem: Problem) -> Config:
    """The tile of a kernel, which divides the blocks of the block mask."""
    table = (_SINGLE if problem.dtype is torch.float32 else _HALF)[kernel]
    found = next(config for depth, config in table if max(problem.depth, problem.width) <= depth)
    if problem.blocks is None:
        return found
    rows, columns = (
        max(gcd(size, block), SMALLEST) for size, block in zip(problem.blocks, (found.y, found.x))
    )
    return Config(columns, rows, num_warps=found.num_warps, num_stages=found.num_stages)
