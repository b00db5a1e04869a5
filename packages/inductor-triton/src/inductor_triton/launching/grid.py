"""Functions of the sizes at launch: how many programs run, and whether indices fit 32 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import sympy

from inductor_triton.kernels.index_text import host_text
from inductor_triton.spec import INT32_LIMIT, LaunchSpec


@cache
def size_function(
    expressions: tuple[sympy.Expr, ...], sizes: tuple[str, ...]
) -> Callable[..., tuple[int, ...]]:
    """A function from the values of ``sizes`` to those of ``expressions``."""
    body = ", ".join(host_text(expr) for expr in expressions)
    scope: dict[str, Any] = {}
    exec(f"def evaluate({', '.join(sizes)}):\n    return ({body},)" if body else _EMPTY, scope)
    return scope["evaluate"]


_EMPTY = "def evaluate(*sizes):\n    return ()"


def program_counter(spec: LaunchSpec) -> Callable[[Sequence[int]], int]:
    """A function from sizes to the number of programs of a launch; 0 if there are no points."""
    extents = size_function((spec.batch, *(extent for extent, _ in spec.blocks)), spec.sizes)
    blocks = [block for _, block in spec.blocks]

    def count(values: Sequence[int]) -> int:
        programs, *points = extents(*values)
        for extent, block in zip(points, blocks):
            programs *= -(-extent // block)
        return programs

    return count


def fits_int32(spec: LaunchSpec, values: Sequence[int]) -> bool:
    """Whether 32-bit indices reach all elements at the sizes ``values``."""
    return all(value <= INT32_LIMIT for value in size_function(spec.limits, spec.sizes)(*values))
