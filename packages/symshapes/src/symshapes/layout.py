"""Questions about strides: contiguity, channels-last order, density; with symbolic sizes these may record guards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sympy
from sympy import S

if TYPE_CHECKING:
    from .env import ShapeEnv
    from .node import SymNode


def contiguous_order(rank: int) -> tuple[int, ...]:
    """Dimensions from innermost to outermost of the default layout."""
    return tuple(range(rank - 1, -1, -1))


def channels_last_order(spatial: int) -> tuple[int, ...]:
    """Dimensions from innermost to outermost of the channels-last layout with ``spatial`` spatial dimensions."""
    return (1, *range(spatial + 1, 1, -1), 0)


def is_contiguous(env: ShapeEnv, sizes: Sequence[SymNode], strides: Sequence[SymNode], order: Sequence[int]) -> bool:
    """Whether the tensor is dense in ``order`` (innermost first); strides of size-1 dimensions don't count."""
    if len(sizes) != len(order):
        return False
    expected: Any = S.One
    for d in order:
        size = sizes[d].expr
        if size == 1:
            continue
        if strides[d].expr != expected and not env.known(sympy.Eq(strides[d].expr, expected)):
            return _empty(env, sizes)
        expected = expected * size
    return True


def _empty(env: ShapeEnv, sizes: Sequence[SymNode]) -> bool:
    return any(env.statically_known(sympy.Eq(s.expr, 0)) is True for s in sizes)


def is_channels_last_strides(env: ShapeEnv, sizes: Sequence[SymNode], strides: Sequence[SymNode], order: Sequence[int]) -> bool:
    """Whether strides rise in channels-last order. An ``N111`` tensor in default layout does not count."""
    if len(sizes) != len(order):
        return False
    size, stride = [s.expr for s in sizes], [s.expr for s in strides]
    if env.known(sympy.Eq(stride[1], 0)):
        return False
    least: Any = S.Zero
    for d in order:
        if env.known(sympy.Eq(size[d], 0)) or not env.known(stride[d] >= least):
            return False
        if d == 0 and env.known(sympy.Eq(least, stride[1])):
            return False
        least = stride[d] * sympy.Max(size[d], 1) if size[d].is_Integer else stride[d] * size[d]
    return True


def is_dense(env: ShapeEnv, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> bool:
    """Whether the elements fill a block of memory without gaps or overlaps, in any order of dimensions."""
    remaining = [(stride.expr, size.expr) for size, stride in zip(sizes, strides) if size.expr != 1]
    expected: Any = S.One
    while remaining:
        index = _next_dimension(env, remaining, expected)
        if index is None:
            return False
        expected = expected * remaining.pop(index)[1]
    return True


def _next_dimension(env: ShapeEnv, remaining: list[tuple[Any, Any]], expected: Any) -> int | None:
    for ask in (env.statically_known, env.known):
        for i, (stride, _) in enumerate(remaining):
            if stride == expected or ask(sympy.Eq(stride, expected)) is True:
                return i
    return None
