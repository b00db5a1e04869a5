"""Grouped products (of a mixture of experts): the text that finds a program's group from the group
ends.

Each group has whole tiles of its own, so the number of tiles is known only on the device: the
launch has programs for as many as there could be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy

from inductor_triton.kernels.heuristics import next_power_of_two

from .product import Product


@dataclass(frozen=True, slots=True)
class Groups:
    """``count`` groups along ``dim``; their ends are stored from ``start`` on (stride ``step``),
    and none exceeds ``extent``.
    """

    dim: str
    count: int
    start: str
    step: str
    extent: str

    def _end_of(self, group: str) -> str:
        return f"{self.start} + ({group})" + ("" if self.step == "1" else f" * ({self.step})")

    def count_tiles(self) -> Iterator[str]:
        """Lines that define ``upto``, the number of tiles of each group and those before it."""
        yield f"groups = tl.arange(0, {next_power_of_two(self.count)})"
        yield f"ends = tl.load({self._end_of('groups')}, mask=groups < {self.count}, other=0)"
        after_first = f"mask=(groups > 0) & (groups < {self.count})"
        yield f"begins = tl.load({self._end_of('groups - 1')}, {after_first}, other=0)"
        block = f"{self.dim.upper()}BLOCK"
        size = f"tl.maximum(tl.minimum(ends, {self.extent}) - begins, 0)"
        yield f"upto = ({size} + ({block} - 1)) // {block}"
        yield "upto = tl.associative_scan(upto, 0, combine_sum)"

    def find_tile(self, place: str, cast: str) -> Iterator[str]:
        """Lines that find the group of tile ``place``, where the tile begins, and where the group
        ends.
        """
        yield f"place = {place}"
        yield f"batch = tl.reduce((upto <= place).to(tl.int32), 0, combine_sum){cast}"
        yield from self.find_part()
        block = f"{self.dim.upper()}BLOCK"
        before = "tl.reduce(tl.where(upto <= place, upto, 0), 0, combine_max)"
        yield f"{self.dim}first = {self.dim}begin + (place - {before}) * {block}"

    def find_part(self) -> Iterator[str]:
        """Lines that find where the part of group ``batch`` begins and ends."""
        yield f"{self.dim}begin = tl.load({self._end_of('batch - 1')}, mask=batch > 0, other=0)"
        yield f"{self.dim}end = tl.minimum(tl.load({self._end_of('batch')}), {self.extent})"


def extent_of_tiles(found: Product, dim: str, extent: sympy.Expr, block: int) -> sympy.Expr:
    """An extent with as many tiles as the groups along it may need: each group may end in a partial
    tile.
    """
    return extent + found.batch * block if found.ragged == dim else extent
