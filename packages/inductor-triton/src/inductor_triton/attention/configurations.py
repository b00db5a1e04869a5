"""Tiles of the attention kernels, by dtype and size of a row."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import gcd

import torch

from inductor_triton.spec import Config

from .problem import SMALLEST, WIDEST, Problem

FORWARD, KEYS, QUERIES = "forward", "keys", "queries"
"""The kernels: the result; the gradients of key and value; the gradient of query."""
_HALF: dict[str, tuple[tuple[int, Config], ...]] = {
    FORWARD: (
        (64, Config(x=128, y=64, num_warps=4, num_stages=2)),
        (128, Config(x=64, y=64, num_warps=4, num_stages=3)),
        (256, Config(x=64, y=128, num_warps=8, num_stages=2)),
    ),
    KEYS: (
        (64, Config(x=64, y=128, num_warps=4, num_stages=2)),
        (128, Config(x=64, y=64, num_warps=4, num_stages=2)),
        (256, Config(x=32, y=64, num_warps=4, num_stages=2)),
    ),
    QUERIES: (
        (64, Config(x=64, y=64, num_warps=4, num_stages=2)),
        (128, Config(x=64, y=64, num_warps=4, num_stages=2)),
        (256, Config(x=64, y=64, num_warps=4, num_stages=2)),
    ),
}
"""Measured on an H200."""
_ENGINE = {
    (FORWARD, 128): Config(x=64, y=128, num_warps=4, num_stages=2, tma=True),
    (FORWARD, 256): Config(x=64, y=128, num_warps=8, num_stages=2, tma=True),
    (KEYS, 256): Config(x=64, y=64, num_warps=8, num_stages=2, tma=True),
    (QUERIES, 256): Config(x=64, y=64, num_warps=4, num_stages=2, tma=True),
}
"""Where the copy engine is faster."""
_SMALL = {
    FORWARD: Config(x=64, y=64, num_warps=4, num_stages=3),
    KEYS: Config(x=64, y=64, num_warps=4, num_stages=2),
    QUERIES: Config(x=64, y=64, num_warps=4, num_stages=2),
}
"""For functions that need many registers: larger tiles would spill them."""
_SINGLE: dict[str, tuple[tuple[int, Config], ...]] = {
    name: (
        (64, Config(x=32, y=64, num_warps=4, num_stages=2)),
        (128, Config(x=32, y=32, num_warps=4, num_stages=2)),
        (256, Config(x=16, y=16, num_warps=4, num_stages=1)),
    )
    for name in (FORWARD, KEYS, QUERIES)
}


@lru_cache(1024)
def configuration(kernel: str, problem: Problem) -> Config:
    """The tile of a kernel, which divides the blocks of the block mask."""
    table = (_SINGLE if problem.dtype is torch.float32 else _HALF)[kernel]
    depth, found = next(entry for entry in table if max(problem.depth, problem.width) <= entry[0])
    is_half = problem.dtype is not torch.float32
    if is_half and depth < WIDEST and needs_registers(kernel, problem):
        found = _SMALL[kernel]
    elif problem.engine and is_half:
        found = _ENGINE.get((kernel, depth), found)
    if problem.blocks is None:
        return found
    rows, columns = (gcd(n, block) for n, block in zip(problem.blocks, (found.y, found.x)))
    return replace(found, x=columns, y=rows)


def needs_registers(kernel: str, problem: Problem) -> bool:
    """Whether the functions of a tile need many registers."""
    work = problem.work
    return "lookup" in work or (kernel == KEYS and "long" in work)


def smaller(config: Config) -> Config | None:
    """A tile that needs less memory; None for the smallest one."""
    if config.num_stages > 1:
        return replace(config, num_stages=config.num_stages - 1)
    if max(config.x, config.y) <= SMALLEST:
        return None
    if config.x >= config.y:
        return replace(config, x=config.x // 2)
    return replace(config, y=config.y // 2)
