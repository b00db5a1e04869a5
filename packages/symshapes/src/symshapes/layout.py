"""Stride predicates: contiguity, channels-last order, density.

Sizes and strides are SymPy expressions. When the answer depends on the sizes, the example call
decides and records a guard; with unbacked sizes the answer is False.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy import S

from .environment import Environment

Exprs = Sequence[Any]


def layout_order(rank: int, channels_last: bool = False) -> tuple[int, ...]:
    """Dimensions of the default or the channels-last layout, innermost first."""
    return (1, *range(rank - 1, 1, -1), 0) if channels_last else tuple(range(rank - 1, -1, -1))


def dense_strides(sizes: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """Strides without gaps, innermost first in ``order``; sizes are ints or symbolic ints."""
    strides: list[Any] = [1] * len(sizes)
    step: Any = 1
    for d in order:
        strides[d] = step
        step = step * sizes[d]
    return strides


def is_contiguous(
    env: Environment, sizes: Exprs, strides: Exprs, channels_last: bool = False
) -> bool:
    """Whether the tensor is dense in default or channels-last order, size-1 dims aside."""
    expected: Any = S.One
    for d in layout_order(len(sizes), channels_last):
        if sizes[d] == 1:
            continue
        if strides[d] != expected and not env.known(sympy.Eq(strides[d], expected)):
            if env.known(sympy.Eq(sizes[d], 1)):
                continue
            return any(env.statically_known(sympy.Eq(s, 0)) is True for s in sizes)
        expected = expected * sizes[d]
    return True


def is_channels_last_strides(env: Environment, sizes: Exprs, strides: Exprs) -> bool:
    """Whether a tensor of rank 4 or 5 has strides that rise in channels-last order.

    An ``N111`` tensor in default layout does not count.
    """
    if len(sizes) not in (4, 5) or env.known(sympy.Eq(strides[1], 0)):
        return False
    least: Any = S.Zero
    for d in layout_order(len(sizes), channels_last=True):
        if env.known(sympy.Eq(sizes[d], 0)) or not env.known(sympy.Ge(strides[d], least)):
            return False
        if d == 0 and env.known(sympy.Eq(least, strides[1])):
            return False
        least = strides[d] * sizes[d]
    return True


def is_dense(env: Environment, sizes: Exprs, strides: Exprs) -> bool:
    """Whether the elements fill a block of memory without gaps or overlaps, in any dim order."""
    remaining = [(stride, size) for size, stride in zip(sizes, strides) if size != 1]
    expected: Any = S.One
    while remaining:
        index = _next_dimension(env, remaining, expected)
        if index is None:
            return False
        expected = expected * remaining.pop(index)[1]
    return True


def _next_dimension(
    env: Environment, remaining: list[tuple[Any, Any]], expected: Any
) -> int | None:
    for ask in (env.statically_known, env.known):
        for i, (stride, _) in enumerate(remaining):
            if stride == expected or ask(sympy.Eq(stride, expected)) is True:
                return i
    return None
