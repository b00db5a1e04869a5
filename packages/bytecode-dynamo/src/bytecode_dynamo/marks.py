"""Marks on tensors: which dimensions are symbolic."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from .errors import UserError

DYNAMIC_MARK = "_bytecode_dynamo_dynamic"
STATIC_MARK = "_bytecode_dynamo_static"
UNBACKED_MARK = "_bytecode_dynamo_unbacked"
MAYBE_DYNAMIC_MARK = "_bytecode_dynamo_maybe_dynamic"


def marks_of(value: torch.Tensor, name: str) -> Any:
    """The value of a mark, read from the instance: a class's ``__getattr__`` may answer for a
    missing one.
    """
    return getattr(value, "__dict__", {}).get(name, ())


def mark_dynamic(
    t: torch.Tensor, dim: int | Iterable[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Make dimensions symbolic from the first capture on, with sizes from ``min`` to ``max`` (both
    included; None: any).

    The capture raises UserError, with the line that asked, when the program needs one certain size.
    Raises IndexError for a dimension that ``t`` does not have, UserError for bounds that exclude
    the size.
    """
    if not all(isinstance(bound, int | None) for bound in (min, max)) or (
        min is not None and max is not None and min > max
    ):
        raise UserError(
            f"mark_dynamic: bounds are ints, min not above max, not {min!r} and {max!r}"
        )
    marks: dict[int, tuple[int | None, int | None]] = dict(marks_of(t, DYNAMIC_MARK))
    for one in _dims(t, dim):
        size = t.shape[one]
        if (min is not None and size < min) or (max is not None and size > max):
            raise UserError(
                f"mark_dynamic: size {size} of dimension {one} is not between {min} and {max}"
            )
        if size < 2:
            warnings.warn(
                f"mark_dynamic: size {size} of dimension {one} is always specialised", stacklevel=2
            )
        marks[one] = (min, max)
    setattr(t, DYNAMIC_MARK, marks)


def maybe_mark_dynamic(t: torch.Tensor, dim: int | Iterable[int]) -> None:
    """Make dimensions symbolic from the first capture on, unless the program needs certain sizes:
    those are specialised, without an error. Raises IndexError for a dimension that ``t`` does not
    have.
    """
    setattr(t, MAYBE_DYNAMIC_MARK, {*marks_of(t, MAYBE_DYNAMIC_MARK), *_dims(t, dim)})


def mark_static(t: torch.Tensor, dim: int | Iterable[int] | None = None) -> None:
    """Never make dimensions (None: any) symbolic. Raises IndexError for a dimension that ``t`` does
    not have.
    """
    dims = _dims(t, range(t.dim()) if dim is None and isinstance(t, torch.Tensor) else dim)
    setattr(t, STATIC_MARK, {*marks_of(t, STATIC_MARK), *dims})


def mark_unbacked(t: torch.Tensor, dim: int | Iterable[int]) -> None:
    """Make dimensions symbols without an example: one graph for every size, 0 and 1 included.

    What asks for the size while capturing breaks the graph. Raises IndexError for a dimension that
    ``t`` does not have.
    """
    setattr(t, UNBACKED_MARK, {*marks_of(t, UNBACKED_MARK), *_dims(t, dim)})


def _dims(t: torch.Tensor, dim: int | Iterable[int] | None) -> list[int]:
    if not isinstance(t, torch.Tensor):
        raise UserError(f"only tensors can be marked, not {type(t).__name__}")
    found = []
    for one in dim if isinstance(dim, Iterable) else (dim,):
        if not isinstance(one, int):
            raise UserError(f"a dimension is an int, not {one!r}")
        if not -t.dim() <= one < t.dim():
            raise IndexError(f"dimension {one} of a tensor with {t.dim()} dimensions")
        found.append(one % t.dim())
    return found
