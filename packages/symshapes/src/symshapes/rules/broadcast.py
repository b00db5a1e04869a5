"""Broadcast sizes and result strides of elementwise ops, as in ATen's TensorIterator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from symshapes.layout import dense_strides, layout_order

from .format import (
    expr,
    format_strides,
    is_contiguous,
    is_dense,
    is_one,
    known_at_least,
    require_equal,
    same_size,
    same_sizes,
)


def broadcast_sizes(env: Any, tensors: Sequence[Any]) -> list[Any]:
    """The common size of all operands. Sizes that are equal only in the example call get a guard.

    Raises RuntimeError when they don't broadcast.
    """
    rank = max(t.dim() for t in tensors)
    out: list[Any] = [1] * rank
    for t in tensors:
        shape = t.shape
        for i in range(1, len(shape) + 1):
            out[-i] = _merge(env, out[-i], shape[-i], rank - i)
    return out


def _merge(env: Any, a: Any, b: Any, dim: int) -> Any:
    if same_size(a, b) or is_one(env, b):
        return a
    if is_one(env, a):
        return b
    if require_equal(env, a, b):
        return a if type(a) is int else b if type(b) is int else a
    raise RuntimeError(
        f"The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton "
        f"dimension {dim}"
    )


def result_strides(
    mode: Any, tensors: Sequence[Any], sizes: Sequence[Any], wrapped: bool = False
) -> Sequence[Any]:
    """Strides of a new result: the operands' common layout, else dense in the order of the
    operands' strides.

    ``wrapped``: whether a number is an operand too. ATen then skips its fast paths, which shows in
    the strides of size-1 dims only, so larger sizes need no guard on the layout.
    """
    if all(t.dim() == len(sizes) and same_sizes(t.shape, sizes) for t in tensors):
        default = format_strides(sizes, False)
        if all(same_sizes(t.stride(), default) for t in tensors):
            return default
        if not wrapped and not all(known_at_least(mode.shape_env, size, 2) for size in sizes):
            if all(is_contiguous(mode, t) for t in tensors):
                return default
            first = tensors[0]
            if all(same_sizes(t.stride(), first.stride()) for t in tensors) and is_dense(
                mode, first
            ):
                return first.stride()
    order = _order(mode.shape_env, tensors, sizes)
    if order == list(layout_order(len(sizes))):
        return format_strides(sizes, False)
    return dense_strides(sizes, order)


def _order(env: Any, tensors: Sequence[Any], sizes: Sequence[Any]) -> list[int]:
    """Dimensions from innermost to outermost: an insertion sort that ignores strides of 0."""
    rank = len(sizes)
    strides = [_broadcast_strides(env, t, sizes) for t in tensors]
    order = list(range(rank - 1, -1, -1))
    for i in range(1, rank):
        at = i
        for j in range(i - 1, -1, -1):
            sign = _compare(env, strides, sizes, order[j], order[at])
            if sign > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif sign < 0:
                break
    return order


def _broadcast_strides(env: Any, t: Any, sizes: Sequence[Any]) -> list[Any]:
    missing = len(sizes) - t.dim()
    out: list[Any] = [0] * missing
    for d, (size, stride) in enumerate(zip(t.shape, t.stride())):
        stretched = is_one(env, size) and not is_one(env, sizes[missing + d])
        out.append(0 if stretched else stride)
    return out


def _compare(
    env: Any, strides: Sequence[Sequence[Any]], sizes: Sequence[Any], a: int, b: int
) -> int:
    """1 if dimension ``a`` should lie outside ``b``, -1 if inside, 0 if undecided."""
    for stride in strides:
        x, y = stride[a], stride[b]
        if _is_zero(env, x) or _is_zero(env, y):
            continue
        if _less(env, x, y):
            return -1
        if _less(env, y, x):
            return 1
        if _less(env, sizes[b], sizes[a]):
            return 1
    return 0


def _is_zero(env: Any, x: Any) -> bool:
    return x == 0 if type(x) is int else env.known(sympy.Eq(expr(x), 0))


def _less(env: Any, x: Any, y: Any) -> bool:
    if type(x) is int and type(y) is int:
        return x < y
    return not same_size(x, y) and env.known(sympy.Lt(expr(x), expr(y)))
