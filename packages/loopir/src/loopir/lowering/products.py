"""Products of a matrix and a vector on CUDA devices. They take as long as reading the matrix does,
so each is a sum over its rows, which the scheduler fuses with what follows and with sums that read
the same vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from symshapes.decisions import may

from loopir.ir.node import Shape

from .context import LoweringContext, combined_cost
from .elementwise import HALF
from .reduction import reduce_dims
from .tensor import Index, Lazy, Strided, TracingOps

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default)
DEVICES = ("cuda",)
DTYPES = (*HALF, torch.float32, torch.float64)


def lower_product(
    ctx: LoweringContext, op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Lazy | None:
    """The product of a row and a matrix or of a matrix and a column, plus a bias; None for all
    others, and for matrices whose sums do not run along memory.
    """
    if op not in PRODUCTS or kwargs or args[-1].device.type not in DEVICES:
        return None
    *bias, left, right = args
    found = _matrix_and_vector(left, right)
    if found is None or left.dtype not in DTYPES or not may("lowering", "vector", ctx.origin[0]):
        return None
    matrix, vector, dim = found
    wide = torch.float32 if left.dtype in HALF else left.dtype
    terms = _terms(matrix, vector, wide)
    total = reduce_dims(ctx, terms, [1], "sum", wide)
    shape = (left.shape[0], right.shape[1])

    def function(ops: TracingOps, index: Index) -> Any:
        value = total.load(ops, (index[dim],))
        for tensor in bias:
            at = index[len(index) - len(tensor.shape) :]
            places = (0 if size == 1 else place for size, place in zip(tensor.shape, at))
            value = ops.add(value, ops.cast(tensor.load(ops, tuple(places)), wide))
        return ops.cast(value, left.dtype)

    return Lazy(shape, left.dtype, left.device, function, combined_cost(total, *bias))


def _matrix_and_vector(left: Strided, right: Strided) -> tuple[Strided, Strided, int] | None:
    """The operand with many rows, the other one as a vector, and the dim of the result."""
    if left.shape[0] == 1 and right.stride[0] == 1:
        return _turned(right), _part(left, 1), 1
    if right.shape[1] == 1 and left.stride[1] == 1:
        return left, _part(right, 0), 0
    return None


def _turned(matrix: Strided) -> Strided:
    return _with_dims(matrix, matrix.shape[::-1], matrix.stride[::-1])


def _part(matrix: Strided, dim: int) -> Strided:
    return _with_dims(matrix, (matrix.shape[dim],), (matrix.stride[dim],))


def _with_dims(tensor: Strided, shape: Shape, stride: Shape) -> Strided:
    return Strided(tensor.buffer, tensor.dtype, tensor.device, shape, stride, tensor.offset)


def _terms(matrix: Strided, vector: Strided, dtype: torch.dtype) -> Lazy:
    """The matrix times the vector, before the sum."""

    def function(ops: TracingOps, index: Index) -> Any:
        element, factor = matrix.load(ops, index), vector.load(ops, (index[1],))
        return ops.mul(ops.cast(element, dtype), ops.cast(factor, dtype))

    return Lazy(matrix.shape, dtype, matrix.device, function, combined_cost(matrix, vector))
