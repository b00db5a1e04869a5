"""Reshapes as index maps and, where memory allows, as stride changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import sympy

from loopir.ir.expr import FloorDiv, Mod
from loopir.ir.node import Shape
from loopir.ir.simplify import ONE, ZERO, product

Group = tuple[list[int], list[int]]


def match_dims(source: Shape, target: Shape) -> list[Group]:
    """Groups source and target dims into pairs of runs with the same number of elements, as short
    as the sizes prove.

    Dims of size 1 are in no group. Symbolic sizes about which nothing is proved form one last
    group.
    """
    left = [i for i, size in enumerate(source) if size != 1]
    right = [i for i, size in enumerate(target) if size != 1]
    groups: list[Group] = []
    a: list[int] = []
    b: list[int] = []
    a_size, b_size = ONE, ONE
    while left or right:
        if a and a_size == b_size:
            groups.append((a, b))
            a, b, a_size, b_size = [], [], ONE, ONE
        take_left = bool(left) and (
            not right or (len(a) <= len(b) and _is_smaller(a_size, b_size)) or not a
        )
        if take_left:
            a.append(left.pop(0))
            a_size = product((a_size, source[a[-1]]))
            continue
        b.append(right.pop(0))
        b_size = product((b_size, target[b[-1]]))
    if a or b:
        groups.append((a, b))
    return groups


def _is_smaller(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether the left run needs another dim: its size is smaller than that of the right run, or a
    proper divisor of it.
    """
    if a.is_Integer and b.is_Integer:
        return int(a) < int(b)
    ratio = b / a
    return ratio.as_numer_denom()[1] == 1


def _strides_within(sizes: Sequence[sympy.Expr]) -> list[sympy.Expr]:
    result, step = [], ONE
    for size in reversed(sizes):
        result.append(step)
        step = product((step, size))
    return result[::-1]


def source_index(
    source: Shape, target: Shape, index: Sequence[sympy.Expr]
) -> tuple[sympy.Expr, ...]:
    """The index into ``source`` of the element at ``index`` of ``target``, both row-major."""
    result: list[sympy.Expr] = [ZERO] * len(source)
    # An empty tensor is never read, and a division by its size 0 is undefined.
    if any(size == 0 for size in source):
        return tuple(result)
    for a, b in match_dims(source, target):
        if len(a) == 1 and len(b) == 1:
            result[a[0]] = index[b[0]]
            continue
        flat = sympy.Add(
            *(index[i] * s for i, s in zip(b, _strides_within([target[i] for i in b]), strict=True))
        )
        sizes = [source[i] for i in a]
        for position, (i, step) in enumerate(zip(a, _strides_within(sizes), strict=True)):
            quotient: sympy.Expr = FloorDiv(flat, step)  # type: ignore[assignment]
            result[i] = quotient if position == 0 else Mod(quotient, source[i])  # type: ignore[call-overload]
    return tuple(result)


def index_copies(source: Shape, target: Shape) -> int:
    """How often the index into ``source`` repeats an index into ``target``: once for each dim that
    is computed from a flat position. Symbolic sizes count double, because divisions by them can
    rarely be simplified.
    """
    result = 1
    for a, b in match_dims(source, target):
        if (len(a), len(b)) != (1, 1) and a:
            is_static = all(source[i].is_Integer for i in a) and all(
                target[i].is_Integer for i in b
            )
            result = max(result, len(a) if is_static else len(a) ** 2)
    return result


def reshaped_strides(source: Shape, stride: Shape, target: Shape) -> Shape | None:
    """The strides that view the same memory as ``target``, or None when a copy is needed."""
    if any(size == 0 for size in source):
        return None
    result: list[sympy.Expr] = [ONE] * len(target)
    for a, b in match_dims(source, target):
        if not a or not b:
            return None
        for outer, inner in pairwise(a):
            if sympy.expand(stride[outer] - stride[inner] * source[inner]) != 0:
                return None
        for i, step in zip(b, _strides_within([target[i] for i in b]), strict=True):
            result[i] = sympy.expand(step * stride[a[-1]])
    step = ONE
    for i in reversed(range(len(target))):
        if target[i] == 1:
            result[i] = step
        step = sympy.expand(result[i] * target[i])
    return tuple(result)
