"""Rules on sizes: equality without guards, wrapping of dims, broadcasting.

A comparison of two ``SymInt``s adds a guard to the shape environment. Nothing here does, unless its
docstring says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from primops.errors import PrimError
from primops.meta import Size


def known(condition: bool | torch.SymBool) -> bool:
    """Whether the condition is true for all values of the symbols, without adding a guard."""
    if isinstance(condition, bool):
        return condition
    return bool(condition.node.statically_known_true(__file__, 0))


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are equal for all values of the symbols."""
    if a is b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt) and a.node.expr == b.node.expr:
        return True
    return known(a == b)


def same_shape(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """``same_size`` for every dim, and equal rank."""
    if a is b:
        return True
    return len(a) == len(b) and all(map(same_size, a, b))


def may_be_equal(a: Size, b: Size) -> bool:
    """False only when two sizes differ in the example (or are different integers)."""
    if same_size(a, b):
        return True
    hint_a, hint_b = size_hint(a), size_hint(b)
    return hint_a is None or hint_b is None or hint_a == hint_b


def may_be_same(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """``may_be_equal`` for every dim, and equal rank."""
    return len(a) == len(b) and all(map(may_be_equal, a, b))


def size_hint(size: Size) -> int | None:
    """The value in the example call, or None for an unbacked symbol."""
    if isinstance(size, int):
        return size
    return size.node.hint


def is_one(size: Size) -> bool:
    """Whether the size is 1 for certain."""
    return size == 1 if isinstance(size, int) else known(size == 1)


def is_zero(size: Size) -> bool:
    """Whether the size is the number 0; a symbolic one is taken to be more."""
    return isinstance(size, int) and size == 0


def is_empty(shape: Sequence[Size]) -> bool:
    """Whether one of the sizes is the number 0."""
    return any(map(is_zero, shape))


def concrete(size: Size) -> int:
    """The size as an ``int``; guards on a symbolic one."""
    return int(size)


def numbers(sizes: Sequence[Size]) -> list[int] | None:
    """The sizes; None if one is symbolic."""
    known = [size for size in sizes if isinstance(size, int)]
    return known if len(known) == len([*sizes]) else None


def is_negative(number: Size) -> bool:
    """Whether a position or amount is below 0 for certain: where that matters, fakes have put a
    guard on its sign.
    """
    return number < 0 if isinstance(number, int) else known(number < 0)


def size_key(size: object) -> object:
    """A hashable stand-in for a size or number: equal keys mean equal values."""
    if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return (type(size), size.node.expr)
    return size


def product(sizes: Iterable[Size]) -> Size:
    """Product of sizes, 1 for none."""
    return math.prod(sizes)


def quotient(a: Size, b: Size) -> Size:
    """a // b."""
    return a // b  # pyright: ignore[reportReturnType]


def divides(a: Size, b: Size) -> bool:
    """Whether b is a multiple of a for all values of the symbols."""
    return known(b % a == 0)  # pyright: ignore[reportOperatorIssue]


def smaller(a: Size, b: Size) -> Size:
    """min(a, b), symbolic where it must be."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if known(a <= b):
        return a
    return b if known(b <= a) else torch.sym_min(a, b)  # pyright: ignore[reportReturnType]


def larger(a: Size, b: Size) -> Size:
    """max(a, b), symbolic where it must be."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if known(a >= b):
        return a
    return b if known(b >= a) else torch.sym_max(a, b)  # pyright: ignore[reportReturnType]


def wrap_dim(dim: int, rank: int) -> int:
    """A dim counted from the end made non-negative; rank 0 counts as 1. Raises IndexError like
    torch.
    """
    rank = max(rank, 1)
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got "
            f"{dim})"
        )
    return dim % rank


def wrap_dims(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted non-negative dims. None and the empty list mean all dims (ATen's rule for
    reductions).
    """
    listed = [dims] if isinstance(dims, int) else list(dims or ())
    if not listed:
        return tuple(range(rank))
    wrapped = sorted(wrap_dim(dim, rank) for dim in listed)
    if len(set(wrapped)) != len(wrapped):
        raise PrimError(f"a dim appears twice in {listed}")
    return tuple(wrapped) if rank else ()


def broadcast_shapes(*shapes: Sequence[Size]) -> tuple[Size, ...]:
    """The common shape of operands by ATen's rule. Raises PrimError for sizes that differ."""
    rank = max(map(len, shapes), default=0)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for position, size in enumerate(shape, rank - len(shape)):
            if is_one(size):
                continue
            if is_one(result[position]):
                result[position] = size
            elif not may_be_equal(result[position], size):
                raise PrimError(f"shapes {[tuple(s) for s in shapes]} do not broadcast")
            elif isinstance(size, int):
                result[position] = size
    return tuple(result)


def resized(shape: Sequence[Size], dim: int, *sizes: Size) -> tuple[Size, ...]:
    """The shape with other sizes in the place of one dim: one, several, or none."""
    return (*shape[:dim], *sizes, *shape[dim + 1 :])


def infer_shape(shape: Sequence[Size], numel: Size) -> tuple[Size, ...]:
    """The target shape of a view, with its -1 replaced."""
    unknown = [dim for dim, size in enumerate(shape) if isinstance(size, int) and size == -1]
    if not unknown:
        return tuple(shape)
    if len(unknown) > 1:
        raise PrimError(f"only one size of {tuple(shape)} can be inferred")
    rest = product(resized(shape, unknown[0]))
    return resized(shape, unknown[0], quotient(numel, rest))
