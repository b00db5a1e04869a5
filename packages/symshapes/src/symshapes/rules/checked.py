"""Ops whose meta kernel lacks a check of eager mode."""

from __future__ import annotations

from typing import Any

from .format import like_operand
from .registry import RULES, bind


def require_dim(x: Any, dim: int) -> None:
    """Raises IndexError for a dim that ``x`` does not have."""
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got "
            f"{dim})"
        )


@RULES.register("sort sort.stable")
def sort(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Values and indices from ``empty_like``."""
    x = args[0]
    require_dim(x, bind(func, args, kwargs)["dim"])
    return tuple(like_operand(mode, result, x) for result in mode.run_meta(func, args, kwargs))


@RULES.register("index_select")
def index_select(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The index is a vector or a scalar."""
    if len(args) > 2 and args[2].dim() > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    return NotImplemented
