"""The product of a template: sizes and operands of mm, addmm, bmm, baddbmm, and of products of
float8 with scales and of groups; their tiles, and when a single launch pays off.

Products of float32 are as precise as eager mode under the setting at compile time.

On an H200 in bfloat16 with bias and gelu, 8192 x 4096 x 4096 (m, k, n) takes 372 us as one launch,
379 us as cuBLAS and a pointwise kernel, and 345 to 352 us for cuBLAS alone. BERT's inference gains
0.9 % from 8192 x 768 x 3072 as one launch; ViT's, whose 6304 rows are not a multiple of the tile,
loses 0.8 %. So the gain without measuring is small, and only certain if all sizes are large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from loopir import Template, View

from inductor_triton.kernels.heuristics import MULTIPROCESSORS, next_power_of_two
from inductor_triton.kernels.indexing import integer
from inductor_triton.kernels.tiling import hint
from inductor_triton.spec import Config

aten = torch.ops.aten
CONVOLUTION = aten.convolution.default
ADDING = (aten.addmm.default, aten.baddbmm.default)
SCALED, GROUPED = aten._scaled_mm.default, aten._grouped_mm.default
MATMULS = (aten.mm.default, aten.bmm.default, *ADDING, SCALED, GROUPED)
LONGEST_EXACT = 4096
HALVES = (torch.float16, torch.bfloat16)
EIGHTHS = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = (*HALVES, torch.float32)
REDUCED = {"sum", "prod", "max", "min", "any", "all"}
WIDEST_ROW = 256
"""Most columns of a result whose rows are reduced after the product, in one tile."""
MOST_GROUPS = 1024
"""Most groups whose ends a program can read."""


@dataclass(frozen=True, slots=True)
class Product:
    """``alpha * left @ right + beta * bias``: sizes ``[batch, m, k] @ [batch, k, n]``, operands in
    ``dtype``.

    ``tf32``: whether float32 operands have fewer bits. ``scales`` are single factors, or one per
    row and one per column; ``rough``: whether sums of float8 may stay in the tensor cores, which
    have fewer bits than float32. For groups, ``ragged`` is the dim (m, n or k) that they divide:
    each has the part that ends at its element of ``ends``.
    """

    left: View
    right: View
    bias: View | None
    dtype: torch.dtype
    batch: sympy.Expr = sympy.S.One
    alpha: float = 1
    beta: float = 1
    tf32: bool = False
    scales: tuple[View, ...] = ()
    rough: bool = False
    ragged: str = ""
    ends: View | None = None

    @property
    def m(self) -> sympy.Expr:
        """Rows of the left operand."""
        return self.left.shape[-2]

    @property
    def n(self) -> sympy.Expr:
        """Columns of the right operand."""
        return self.right.shape[-1]

    @property
    def k(self) -> sympy.Expr:
        """Columns of the left operand, the length of the sum."""
        return self.left.shape[-1]

    @property
    def matrices(self) -> sympy.Expr:
        """The number of result matrices: groups with parts of the rows or columns share one."""
        return sympy.Integer(1) if self.ragged in ("m", "n") else self.batch


def product_of(template: Template) -> Product | None:
    """The product of a template.

    None if the template is of another kind, if its operands are not floats of 16 or 32 bits (8 bits
    with scales), or if a sum at full precision is so long that adding its terms in sequence is less
    precise than the library's partial sums.
    """
    if template.op not in MATMULS:
        return None
    known = template.op._schema.arguments
    given = {arg.name: arg.default_value for arg in known} | dict(
        zip((arg.name for arg in known), template.args)
    )
    find = {SCALED: _scaled, GROUPED: _grouped}.get(template.op, _plain)
    found = find(template, given | dict(template.kwargs))
    if found is None or not _fits_tile(template, found):
        return None
    if all(name in (found.left.buffer, found.right.buffer) for name, _ in template.prologues):
        return found
    return None


def _fits_tile(template: Template, found: Product) -> bool:
    """Whether loops after the product reduce no row longer than a tile."""
    kernel, length = template.epilogue.kernel, integer(found.n)
    kinds = {str(step.args[0]) for step in kernel.steps if step.op == "reduce"}
    if not kernel.reduction:
        return True
    return length is not None and length <= WIDEST_ROW and found.ragged != "n" and kinds <= REDUCED


def _plain(template: Template, given: dict[str, Any]) -> Product | None:
    """The product of mm, addmm, bmm or baddbmm."""
    if not all(isinstance(arg, View) for arg in template.args):
        return None
    args: list[View] = list(template.args)  # type: ignore[arg-type]
    bias = args.pop(0) if template.op in ADDING else None
    left, right = args
    dtypes = {dtype_of(template, left), dtype_of(template, right)}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        return None
    alpha, beta = given.get("alpha", 1), given.get("beta", 1)
    if not all(isinstance(value, int | float) for value in (alpha, beta)):
        return None
    batch = left.shape[0] if len(left.shape) == 3 else sympy.Integer(1)
    dtype = dtypes.pop()
    tf32 = (
        dtype is torch.float32
        and torch.backends.cuda.matmul.fp32_precision == "tf32"
        and _in_sixteens((left, right), 4)
    )
    if dtype is torch.float32 and not tf32 and hint(template, left.shape[-1]) > LONGEST_EXACT:
        return None
    return Product(left, right, bias, dtype, batch, alpha, beta, tf32)


def _scaled(template: Template, given: dict[str, Any]) -> Product | None:
    """A product of float8 matrices with one factor each, or with one per row of the left and per
    column of the right.
    """
    left, right, bias = given["self"], given["mat2"], given["bias"]
    scales: tuple[View, View] = given["scale_a"], given["scale_b"]
    m, n = left.shape[0], right.shape[1]
    dtypes = [dtype_of(template, left), dtype_of(template, right)]
    by_one = all(size == 1 for scale in scales for size in scale.shape)
    by_row = [tuple(scale.shape) for scale in scales] == [(m, 1), (1, n)]
    if not (by_one or by_row) or any(
        dtype_of(template, scale) is not torch.float32 for scale in scales
    ):
        return None
    result = template.epilogue.tensor.dtype
    if not {*dtypes} <= {*EIGHTHS} or result in EIGHTHS or given["scale_result"] is not None:
        return None
    return Product(left, right, bias, dtypes[0], scales=scales, rough=bool(given["use_fast_accum"]))


def _grouped(template: Template, given: dict[str, Any]) -> Product | None:
    """Products of groups, each with a part of the rows, of the columns or of the sum; or a batch of
    them.
    """
    left, right, ends = given["self"], given["mat2"], given["offs"]
    dtypes = {dtype_of(template, left), dtype_of(template, right)}
    if (
        len(dtypes) != 1
        or not dtypes <= {*HALVES}
        or given["bias"] is not None
        or not _in_sixteens((left, right), 2)
    ):
        return None  # the library raises an error for rows that are not aligned
    batch, ragged = left.shape[0], ""
    if ends is not None:
        batch = ends.shape[0]
        groups = integer(batch)
        if groups is None or not 1 < groups <= MOST_GROUPS:
            return None
        ragged = {(2, 3): "m", (3, 2): "n", (2, 2): "k"}[len(left.shape), len(right.shape)]
    return Product(left, right, None, dtypes.pop(), batch, ragged=ragged, ends=ends)


def dtype_of(template: Template, view: View) -> torch.dtype:
    """The dtype of an operand's elements."""
    stage = dict(template.prologues).get(view.buffer)
    return template.dtypes[view.buffer] if stage is None else stage.tensor.dtype


def _in_sixteens(views: Sequence[View], itemsize: int) -> bool:
    """Whether rows are known to begin at multiples of 16 bytes; cuBLAS computes others at full
    precision.
    """
    numbers = [integer(value) for view in views for value in (*view.stride, view.offset)]
    return all(
        value is not None and (value == 1 or value * itemsize % 16 == 0) for value in numbers
    )


SMALLEST_M, SMALLEST_N, SMALLEST_K, WHOLE_TILE = 4096, 2048, 2048, 128
SMALLEST_SCALED_M, SMALLEST_SCALED_N = 8192, 4096
"""On an H200 with one scale per row or per matrix, gelu after products of 8192 to 16384 x 2048 to
8192 x 4096 to 8192 took 0.82 to 0.97 of the time of cuBLAS and a kernel; if cuBLAS accumulates in
float32 between the steps of a sum, one launch took 1.16 or more.
"""
MANY_ROWS, LONGEST_BEFORE_ROWS = 32768, {128: 2048, 256: 256}
"""The longest sum by the number of columns of the product."""
FEWEST_PIXELS, MOST_PIXELS, MOST_CHANNELS, CHANNELS = 49, 25088, 2048, 64
LONG_SUM = 2048
ROW_BYTES = 128
"""Bytes of each row and column that a step of the sum reads."""


def sizes_of(template: Template, product: Product) -> tuple[int, int, int, int]:
    """The number of matrices, m, n and k in the example call; groups of a sum are taken to have
    equal parts.
    """
    k = hint(template, product.k) // (int(product.batch) if product.ragged == "k" else 1)
    return hint(template, product.matrices), hint(template, product.m), hint(template, product.n), k


def unprofitable(template: Template, product: Product) -> str:
    """Why cuBLAS and pointwise kernels are likely to be as fast; empty if a single launch is faster
    by a clear margin.
    """
    _, m, n, k = sizes_of(template, product)
    stores = sum(step.op == "store" for step in template.epilogue.kernel.steps)
    if product.dtype is torch.float32:
        return "products of float32 gain where they are measured to"
    if template.op is GROUPED or (template.op is SCALED and not product.rough):
        return (
            "products of groups, and of float8 whose sums leave the tensor cores, gain where they "
            "are measured to"
        )
    if template.epilogue.kernel.reduction:
        return _unprofitable_rows(template, product, stores)
    if template.op is CONVOLUTION:
        return _unprofitable_convolution(template, product, stores)
    if (
        not has_descriptors(template, product)
        or product.left.stride[1] != 1
        or product.right.stride[0] != 1
    ):
        return "operands that are no matrices with the sum along memory were not measured to gain"
    if stores != 1:
        return f"an epilogue of {stores} results saves one read only"
    if (
        m < SMALLEST_M
        or n < SMALLEST_N
        or k < SMALLEST_K
        or n < k
        or m % WHOLE_TILE
        or n % WHOLE_TILE
    ):
        return f"a product of {m} x {k} x {n} was not measured to gain"
    if template.op is SCALED and (m < SMALLEST_SCALED_M or n < SMALLEST_SCALED_N):
        return f"a product of float8 of {m} x {k} x {n} was not measured to gain"
    return ""


def _unprofitable_rows(template: Template, product: Product, stores: int) -> str:
    """:func:`unprofitable` for products whose rows are reduced.

    On an H200 in bfloat16 one launch took 0.85 of the time of cuBLAS and a kernel for softmax after
    32768 x 2048 x 128, 0.73 for layer norm after 65536 x 256 x 256, 0.62 for rms norm after 65536 x
    128 x 128, but 1.10 for softmax after 8192 x 4096 x 256.
    """
    _, m, n, k = sizes_of(template, product)
    rows = (product.left.stride[-1], product.right.stride[-2]) == (1, 1)
    if (
        template.op in (SCALED, CONVOLUTION)
        or template.prologues
        or template.sizes
        or not rows
        or product.batch != 1
        or stores != 1
    ):
        return "rows of products of other kinds were not measured to gain"
    if m < MANY_ROWS or k > LONGEST_BEFORE_ROWS.get(n, 0):
        return f"rows of a product of {m} x {k} x {n} were not measured to gain"
    return ""


def _unprofitable_convolution(template: Template, product: Product, stores: int) -> str:
    """:func:`unprofitable` for convolutions.

    On an H200 in bfloat16 with batch norm, residual and relu, cuDNN and a pointwise kernel took
    1.01 to 2.99 times as long as one launch for 29 of ResNet's convolutions of 1, 8 and 32 images;
    larger images and longer sums did not always gain.
    """
    _, m, n, k = sizes_of(template, product)
    rows = (product.left.stride[-1], product.right.stride[0]) == (1, 1)
    if template.prologues or template.sizes or not rows or product.batch != 1 or stores != 1:
        return (
            "convolutions with loops before them, not channels-last or with several results were "
            "not measured to gain"
        )
    if (
        not FEWEST_PIXELS <= m <= MOST_PIXELS
        or max(n, 2 * k) > MOST_CHANNELS
        or n % CHANNELS
        or k % CHANNELS
    ):
        return f"a convolution of {m} pixels from {k} to {n} channels was not measured to gain"
    return ""


def matmul_config(template: Template) -> Config:
    """Chooses the tiles without measuring."""
    found = product_of(template)
    assert found is not None
    if template.epilogue.kernel.reduction:
        return _whole_rows(template, found)
    if found.dtype is not torch.float32 or found.tf32:
        return replace(_tiles(template, found), tf32=found.tf32)
    return Config(x=64, y=64, r=16, num_warps=4, num_stages=3)


def _whole_rows(template: Template, found: Product) -> Config:
    matrices, m, n, k = sizes_of(template, found)
    columns = max(16, next_power_of_two(n))
    if found.dtype is torch.float32 and not found.tf32:
        return Config(x=columns, y=32, r=16, num_warps=8 if columns > 128 else 4, num_stages=3)
    step = _step(k, ROW_BYTES // found.dtype.itemsize)
    if columns >= WHOLE_TILE and matrices * m >= MANY_ROWS:
        return Config(x=columns, y=128, r=step, num_warps=8, num_stages=3, tf32=found.tf32)
    return Config(
        x=columns, y=64, r=step, num_warps=8 if columns > 128 else 4, num_stages=4, tf32=found.tf32
    )


def _tiles(template: Template, found: Product) -> Config:
    batch, m, n, k = sizes_of(template, found)
    step = _step(k, ROW_BYTES // found.dtype.itemsize)

    def tiles(rows: int, columns: int) -> int:
        return batch * -(-m // rows) * -(-n // columns)

    if tiles(128, 128) < MULTIPROCESSORS or m <= 64 or n <= 64:
        rows, columns = (
            (64 if m > 32 else 32),
            (128 if n > 64 and tiles(64, 128) >= 2 * MULTIPROCESSORS else 64),
        )
        return Config(x=columns, y=rows, r=step, num_warps=4, num_stages=4)
    if k >= LONG_SUM and has_descriptors(template, found):
        columns = 256 if tiles(128, 256) >= 2 * MULTIPROCESSORS and n > LONG_SUM else 128
        written = {
            buffer.name: buffer.dtype.itemsize for buffer in template.buffers if buffer.role != "in"
        }
        # results also go through shared memory
        is_small = columns == 128 if found.ragged else sum(written.values()) <= 2
        stages = 4 if is_small else 3
        grid = MULTIPROCESSORS if found.ragged else even_grid(tiles(128, columns))
        return Config(x=columns, y=128, r=step, num_warps=8, num_stages=stages, grid=grid, tma=True)
    return Config(x=128, y=128, r=step, num_warps=8, num_stages=3)


def even_grid(tiles: int) -> int:
    """The number of programs that walk over tiles.

    The fewest that finish at the same time, so that all have the same number of tiles and share
    operands longer. On an H200 128 programs for 1024 tiles take 364 us, 132 take 371.
    """
    return -(-tiles // -(-tiles // MULTIPROCESSORS))


def _matrix_size(view: View) -> sympy.Expr:
    """The distance in elements from one matrix of a batch to the next if they are consecutive."""
    return max(size * step for size, step in zip(view.shape[1:], view.stride[1:]))  # type: ignore[type-var]


def _step(k: int, most: int) -> int:
    step = 16
    while step < min(k, most):
        step *= 2
    return step


def has_descriptors(template: Template, product: Product) -> bool:
    """Whether the copy engine can read both operands from memory: static matrices with rows of a
    multiple of 16 bytes. The matrices of groups must also be consecutive, and the steps of the sum
    must not go beyond them.
    """
    if (
        product.matrices != 1
        or template.prologues
        or template.sizes
        or template.epilogue.kernel.reduction
    ):
        return False
    for view in (product.left, product.right):
        if 1 not in view.stride[-2:] or not _in_sixteens((view,), product.dtype.itemsize):
            return False
        if len(view.shape) == 3 and (not product.ragged or view.stride[0] != _matrix_size(view)):
            return False
    if product.ragged and int(product.k) * product.dtype.itemsize % ROW_BYTES:
        return False
    return "indirect" not in template.epilogue.kernel.ops
