"""In-place products with a number from memory, which do nothing if the number is 1.

Backward of a loss multiplies the gradients that forward computed by the tangent, in place, almost
always by 1. A grid that walks over the blocks detects that at a cost that does not depend on their
size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loopir import Instruction, Kernel, Value, definitions, points_of

from inductor_triton.spec import Config

from .heuristics import MULTIPROCESSORS
from .indexing import integer
from .tiling import hint

RESIDENT = 8
"""Programs per multiprocessor."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """``result[i] = source[i] * factor[0]``, rounded to the dtype that source and result share."""

    result: str
    source: str
    factor: str


def scaling_of(kernel: Kernel) -> Scaling | None:
    """The product that ``kernel`` computes; None if it does anything else."""
    steps = kernel.steps
    known = definitions(steps)
    stores = [step for step in steps if step.op == "store"]
    others = kernel.ops - {"load", "cast", "mul", "store"}
    if kernel.reduction or len(stores) != 1 or others or stores[0].args[3] is not None:
        return None
    dtypes = kernel.dtypes
    found = _loaded(stores[0].args[2], known)
    if found is None or found.op != "mul" or not dtypes[str(stores[0].args[0])].is_floating_point:
        return None
    for pair in (found.args, found.args[::-1]):
        source, factor = (_loaded(arg, known) for arg in pair)
        if source is None or factor is None or source.op != "load" or factor.op != "load":
            continue
        result, place = str(stores[0].args[0]), stores[0].args[1]
        whole = source.args[1] == place and integer(factor.args[1]) == 0  # type: ignore[arg-type]
        is_exact = (
            dtypes[result] == dtypes[str(source.args[0])]
            and found.dtype is not None
            and found.dtype.is_floating_point
        )
        if (
            whole
            and is_exact
            and source.args[2] is None
            and found.dtype.itemsize >= dtypes[result].itemsize  # type: ignore[union-attr]
        ):
            return Scaling(result, str(source.args[0]), str(factor.args[0]))
    return None


def _loaded(operand: object, known: dict[str, Instruction]) -> Instruction | None:
    """The instruction that defines an operand, below its casts."""
    step = known.get(operand.name) if isinstance(operand, Value) else None
    while step is not None and step.op == "cast":
        step = known.get(str(step.args[0]))
    return step


def walking(kernel: Kernel, config: Config) -> Config:
    """``config`` for a grid that walks over the blocks; unchanged if there are too few of them."""
    blocks = -(-hint(kernel, points_of(kernel.ranges)) // config.x)
    grid = RESIDENT * MULTIPROCESSORS
    return replace(config, grid=grid) if blocks > grid else config
