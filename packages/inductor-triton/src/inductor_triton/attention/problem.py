"""What the text of an attention kernel depends on, and the sizes that each call passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import loopir
import torch

from .function_rules import simplify, work

if TYPE_CHECKING:
    from loopir import ElementFunction

SMALLEST, WIDEST = 16, 256
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@lru_cache(256)
def simplified(text: str, is_half: bool, is_short: bool) -> Mapping[str, ElementFunction]:
    """The functions of a text by name, with cheaper instructions (``simplify``)."""
    return {
        name: replace(function, body=simplify(function.body, is_half, is_short))
        for name, function in loopir.lower_functions(text).items()
    }


@dataclass(frozen=True, slots=True)
class Problem:
    """The facts that select a kernel; lengths, numbers of heads and strides are arguments of it.

    Attributes:
        functions: the text of the score and mask functions.
        dtype: of query, key and value.
        depth: the size of a row of query and key.
        width: the size of a row of value.
        scale: the factor of the products.
        blocks: the sizes of a query and a key block of the block mask; None without one.
        has_full: whether the block mask lists full blocks apart.
        captured: dtype and sizes of each captured tensor; sizes other than 1 are None.
        whole_rows: whether the number of queries is a multiple of any tile's.
        whole_columns: the same of keys.
        is_grouped: whether several query heads share a key head.
        exact: float32 products have all bits.
        engine: whether the device has a copy engine.
        is_short: whether all lengths and captured tensors are below 2**24.
    """

    functions: str
    dtype: torch.dtype
    depth: int
    width: int
    scale: float
    blocks: tuple[int, int] | None
    has_full: bool
    captured: tuple[tuple[torch.dtype, tuple[int | None, ...]], ...]
    whole_rows: bool
    whole_columns: bool
    is_grouped: bool
    exact: bool = True
    engine: bool = False
    is_short: bool = False

    @property
    def lowered(self) -> Mapping[str, ElementFunction]:
        """The functions by name."""
        return simplified(self.functions, self.dtype is not torch.float32, self.is_short)

    @property
    def work(self) -> set[str]:
        """What the functions do for each score (``function_rules.work``)."""
        return set[str]().union(*(work(function.body) for function in self.lowered.values()))


def refusal(problem: Problem) -> str:
    """Why no kernel can be generated; empty if one can."""
    if problem.dtype not in DTYPES:
        return f"no kernel for {problem.dtype}"
    if max(problem.depth, problem.width) > WIDEST:
        return f"rows of more than {WIDEST} elements"
    if problem.blocks is not None and any(size % SMALLEST for size in problem.blocks):
        return f"blocks that are no multiples of {SMALLEST}"
    return ""
