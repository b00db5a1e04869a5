"""Configurations worth measuring, the default first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from loopir import Kernel, Template

from inductor_triton.kernels.heuristics import MULTIPROCESSORS, next_power_of_two
from inductor_triton.kernels.indexing import merge_loops
from inductor_triton.kernels.passes.trivial_reductions import simplified
from inductor_triton.kernels.tiling import choose_tiling, describe
from inductor_triton.products.product import (
    ROW_BYTES,
    even_grid,
    has_descriptors,
    matmul_config,
    product_of,
    sizes_of,
)
from inductor_triton.spec import Config

LARGEST_BLOCK = 16384
MOST_WARPS = 32
TILES = (
    (128, 256, 8, 4),
    (256, 128, 8, 4),
    (128, 128, 8, 3),
    (128, 128, 4, 4),
    (64, 128, 4, 4),
    (64, 64, 4, 4),
    (128, 64, 4, 4),
)
"""Rows, columns, warps and stages of matrix products."""
SMALL_TILES = (
    (16, 16, 1, 3),
    (16, 32, 2, 3),
    (32, 16, 2, 3),
    (32, 32, 2, 3),
    (16, 64, 2, 5),
    (64, 16, 2, 5),
    (16, 128, 4, 5),
    (32, 128, 4, 4),
    (128, 32, 4, 4),
)
"""Tiles of products with few rows or columns, such as batches of small matrices."""
FEW = 32
LARGEST_EXACT = 64 * 128
"""Elements of a tile of float32 products without tensor cores: each takes a register, and the
arithmetic is unrolled.
"""
SPLITS, SHORTEST_SUM = (2, 4, 8), 512
"""Number of parts of a long sum, for products with too few tiles for the device."""


def candidates(kernel: Kernel | Template) -> list[Config]:
    """Configurations of a kernel or template: half and twice the warps and elements, other tiles,
    and rows in one block or in a loop.
    """
    found = _of_template(kernel) if isinstance(kernel, Template) else _of_kernel(kernel)
    return list(dict.fromkeys(found))


def _of_kernel(kernel: Kernel) -> Iterator[Config]:
    flat = merge_loops(simplified(kernel))
    work = describe(flat)
    base = choose_tiling(flat, work).config
    yield base
    for warps in (base.num_warps, base.num_warps // 2, base.num_warps * 2):
        if not 1 <= warps <= MOST_WARPS:
            continue
        yield replace(base, num_warps=warps)
        for factor in (0.5, 2):
            if not flat.reduction or base.persistent:
                yield from _fitting(replace(base, x=int(base.x * factor), num_warps=warps))
            else:
                yield from _fitting(replace(base, r=int(base.r * factor), num_warps=warps))
                yield from _fitting(replace(base, x=int(base.x * factor), num_warps=warps))
    if flat.reduction and work.static and work.inner_contiguous:
        length = next_power_of_two(work.reduction)
        other = replace(
            base,
            r=length if not base.persistent else min(length, 2048),
            persistent=not base.persistent,
        )
        for warps in (4, 8, 16):
            yield from _fitting(replace(other, num_warps=warps))


def _fitting(config: Config) -> Iterator[Config]:
    if config.x >= 1 and config.r >= 1 and config.x * config.y * config.r <= LARGEST_BLOCK:
        yield config


def _widest(extent: int) -> int:
    """The longest side of a tile that is worth measuring; tensor cores need at least 16."""
    return max(16, 2 * next_power_of_two(extent))


def _of_template(template: Template) -> Iterator[Config]:
    base = matmul_config(template)
    yield base
    found = product_of(template)
    assert found is not None
    batch, m, n, k = sizes_of(template, found)
    exact = found.dtype is torch.float32 and not found.tf32
    if template.epilogue.kernel.reduction:
        rows = [rows for rows in (16, 32, 64, 128) if rows <= _widest(m)]
        yield from (replace(base, y=each, num_warps=warps) for each in rows for warps in (4, 8))
        return
    by_engine = has_descriptors(template, found) and not exact
    for rows, columns, warps, stages in (*SMALL_TILES, *TILES) if min(m, n) <= FEW else TILES:
        if rows > _widest(m) or columns > _widest(n):
            continue
        if exact and rows * columns > LARGEST_EXACT:
            continue
        plain = replace(
            base, x=columns, y=rows, num_warps=warps, num_stages=stages, grid=0, tma=False
        )
        yield plain
        yield replace(plain, num_stages=stages - 1)
        if (
            batch == 1
            and not found.ragged
            and not template.sizes
            and -(-m // rows) * -(-n // columns) < MULTIPROCESSORS
        ):
            yield from (
                replace(plain, split=parts)
                for parts in SPLITS
                if k % (parts * base.r) == 0 and k // parts >= SHORTEST_SUM
            )
        if by_engine:
            tiles = -(-m // rows) * -(-n // columns)
            step = ROW_BYTES // found.dtype.itemsize
            yield from (
                replace(plain, r=step, grid=grid, tma=True)
                for grid in {MULTIPROCESSORS, even_grid(tiles)}
            )
