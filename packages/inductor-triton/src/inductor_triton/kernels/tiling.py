"""Maps a kernel's loops to programs and blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import sympy
from loopir import (
    Instruction,
    Kernel,
    Range,
    Template,
    accessed,
    choose,
    current_choices,
    example_value,
    kernel_label,
    points_of,
)

from inductor_triton.kernels.passes.online_softmax import OnlinePair, one_pass
from inductor_triton.spec import Config, format_config, parse_config

from . import heuristics
from .heuristics import Workload
from .indexing import index_of, integer, stride

LONG = {
    "exp", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "erf",
    "lgamma", "pow", "atan2", "fmod", "remainder", "uniform", "uniform16", "gelu",
}  # fmt: skip
"""Operations that take many instructions."""
RANDOM = {"uniform", "uniform16"}
DEFAULT_HINT = 1024
SMALLEST_TILE = 16
CONFIGURATIONS = "configurations"
"""The rule of recorded configurations."""
SECTOR = 32
"""Bytes that memory moves at least."""
HELD_ELEMENTS = 32
"""Elements of a row per thread that stay in registers between two passes."""
SMALL_SHARE = 8
"""A buffer with less than one element per this many points does not influence the number of
elements per thread.
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """Loops flattened into one dimension of a block.

    ``position`` is that dimension's index among ``rank`` ones; ``ends``: whether this is the last
    block of the loops, whose size is a literal; ``beyond``: whether blocks may reach beyond its end
    anyway, because they are parts of larger ones or because groups end anywhere in it.
    """

    name: str
    loops: tuple[Range, ...]
    block: int
    position: int
    rank: int
    ends: bool = False
    beyond: bool = False

    @property
    def extent(self) -> sympy.Expr:
        """The number of points."""
        return points_of(self.loops)

    @property
    def masked(self) -> bool:
        """Whether a block can reach beyond the extent."""
        extent = integer(self.extent)
        return self.beyond or extent is None or extent % self.block != 0

    @property
    def block_name(self) -> str:
        """The constant that holds the block size in the source."""
        return str(self.block) if self.ends else f"{self.name.upper()}BLOCK"


@dataclass(frozen=True, slots=True)
class Tiling:
    """The axes in order of block dimensions, and the loops over which each program has a single
    point (``batch``).
    """

    axes: tuple[Axis, ...]
    batch: tuple[Range, ...]
    config: Config

    @property
    def program_axes(self) -> tuple[Axis, ...]:
        """The axes that are divided among programs."""
        return tuple(axis for axis in self.axes if axis.name != "r")

    @property
    def reduction(self) -> Axis | None:
        """The axis of the reduction."""
        return next((axis for axis in self.axes if axis.name == "r"), None)


def choose_tiling(kernel: Kernel, work: Workload, config: Config | None = None) -> Tiling:
    """The tiling of ``kernel``, with the blocks of ``config`` or of the heuristics for ``work``."""
    if kernel.reduction:
        config = config or recorded_config(kernel, heuristics.reduction(work))
        axes = (
            Axis("x", kernel.ranges, _block(kernel.ranges, config.x), 0, 2),
            Axis("r", kernel.reduction, config.r, 1, 2),
        )
        return Tiling(axes, (), config)
    rows = transposed_loop(kernel)
    if rows is None:
        config = config or recorded_config(kernel, heuristics.pointwise(work))
        loops = _store_order(kernel)
        return Tiling((Axis("x", loops, _block(loops, config.x), 0, 1),), (), config)
    config = config or recorded_config(kernel, heuristics.tiled(work))
    columns = kernel.ranges[-1]
    batch = tuple(item for item in kernel.ranges if item not in (rows, columns))
    return Tiling(
        (Axis("y", (rows,), config.y, 0, 2), Axis("x", (columns,), config.x, 1, 2)), batch, config
    )


def _block(loops: tuple[Range, ...], block: int) -> int:
    """The block of an axis: without loops it has one point, which would be added several times."""
    return block if loops else 1


def recorded_config(kernel: Kernel, preferred: Config) -> Config:
    """The recorded configuration of a kernel, if it fits it; else the preferred one."""
    if current_choices() is None:
        return preferred

    def is_possible(text: str) -> bool:
        config = config_of(text)
        if config is None or config.split > 1 or config.tma or config.y > 1 > len(kernel.ranges):
            return False
        length = prod(hint(kernel, item.extent) for item in kernel.reduction)
        return not config.persistent or config.r >= length

    label = kernel_label(kernel)
    return parse_config(choose(CONFIGURATIONS, label, format_config(preferred), is_possible))


def config_of(text: str) -> Config | None:
    """The configuration of a text; None if no kernel can have it."""
    try:
        config = parse_config(text)
    except (ValueError, TypeError):
        return None
    sizes = (config.x, config.y, config.r, config.num_warps)
    fits = all(0 < size == 1 << size.bit_length() - 1 for size in sizes)
    return config if fits and config.num_warps <= 32 and config.num_stages > 0 else None


def transposed_loop(kernel: Kernel) -> Range | None:
    """The loop that the scheduler wants tiled together with the last one; None if a flat block is
    enough.
    """
    rows = next((item for item in kernel.ranges[:-1] if item.symbol == kernel.tile_axis), None)
    if rows is None:
        return None
    if min(hint(kernel, rows.extent), hint(kernel, kernel.ranges[-1].extent)) >= SMALLEST_TILE:
        return rows
    return None


def _store_order(kernel: Kernel) -> tuple[Range, ...]:
    """The loops; a loop that is too short for tiles comes last if all stores are contiguous along
    it.

    The rest of a partially loaded cache line is a cache hit for neighbouring elements, but a
    partially stored line is written again.
    """
    short = next((item for item in kernel.ranges[:-1] if item.symbol == kernel.tile_axis), None)
    if short is None:
        return kernel.ranges
    stores = [index_of(step) or sympy.Integer(0) for step in kernel.steps if step.op == "store"]
    if not all(stride(index, short.symbol) == 1 for index in stores):
        return kernel.ranges
    return (*(item for item in kernel.ranges if item is not short), short)


def hint(kernel: Kernel | Template, expr: sympy.Expr) -> int:
    """The value of a size expression in the example call, or a guess."""
    return example_value(expr, dict(kernel.hints), DEFAULT_HINT)


def describe(kernel: Kernel) -> Workload:
    """The properties of ``kernel`` that the heuristics need."""
    points = prod(hint(kernel, item.extent) for item in kernel.ranges)
    sizes = [
        buffer.dtype.itemsize for buffer in kernel.buffers if buffer.name in _moved(kernel, points)
    ]
    contiguous = True
    if kernel.reduction and kernel.ranges:
        contiguous = _bytes_along(kernel, kernel.reduction[-1]) >= _bytes_along(
            kernel, kernel.ranges[-1]
        )
    return Workload(
        points=points,
        reduction=prod(hint(kernel, item.extent) for item in kernel.reduction),
        itemsize=max(sizes, default=4),
        operations=sum(map(weight, kernel.steps)),
        inner_contiguous=contiguous,
        static=all(integer(item.extent) is not None for item in kernel.reduction),
        passes=_passes(kernel),
        long_arithmetic=bool(LONG & kernel.ops),
        adds=any(step.is_add for step in kernel.steps),
        scans="scan" in kernel.ops,
        gathers="indirect" in kernel.ops,
        row_bytes=_kept_bytes(kernel),
        draws=bool(RANDOM & kernel.ops),
        crosses=contiguous and _crosses_rows(kernel),
        shares=_own_operands(kernel) if contiguous else 0,
    )


def _own_operands(kernel: Kernel) -> int:
    """How many operands each row has for itself, if all rows read the same elements of another one,
    as products with a vector do; 0 if they share none.
    """
    along = {item.symbol for item in kernel.reduction}
    loops = {item.symbol for item in kernel.ranges}
    indices = (index_of(step) for step in kernel.steps if step.op == "load")
    own = [
        not loops.isdisjoint(index.free_symbols)
        for index in indices
        if index is not None and along & index.free_symbols
    ]
    return sum(own) if not all(own) else 0


def _crosses_rows(kernel: Kernel) -> bool:
    """Whether a load along the reduction has a sector of memory for each element, and neighbouring
    rows read the rest of it: it is contiguous along the last point loop, or at an index that
    depends on data.
    """
    if not kernel.ranges or not kernel.reduction:
        return False
    row, point = kernel.reduction[-1].symbol, kernel.ranges[-1].symbol
    sizes = {buffer.name: buffer.dtype.itemsize for buffer in kernel.buffers}
    gathered = {step.result for step in kernel.steps if step.op == "indirect"}
    for step in kernel.steps:
        index = index_of(step) if step.op == "load" else None
        if index is None or row not in index.free_symbols:
            continue
        along = integer(stride(index, row) or 0)
        is_shared = stride(index, point) == 1 or any(
            symbol.name in gathered  # type: ignore[attr-defined]
            for symbol in index.free_symbols
        )
        if along and abs(along) * sizes[str(step.args[0])] >= SECTOR and is_shared:
            return True
    return False


def weight(step: Instruction) -> int:
    """The approximate number of machine instructions of a step."""
    return 24 if step.op in RANDOM else 8 if step.op in LONG else 1


def _moved(kernel: Kernel, points: int) -> set[str]:
    """The buffers with most of the memory traffic: those accessed along the reduction, or those
    with about as many elements as there are points.
    """
    moves = [step for step in kernel.steps if step.is_access]
    along = {item.symbol for item in kernel.reduction}
    rows = {
        str(step.args[0])
        for step in moves
        if (index_of(step) or sympy.Integer(0)).free_symbols & along
    }
    sizes = {buffer.name: hint(kernel, sympy.sympify(buffer.numel)) for buffer in kernel.buffers}
    touched = accessed(kernel.steps)
    return rows or {name for name in touched if SMALL_SHARE * sizes[name] >= points} or touched


def narrowest(kernel: Kernel) -> int:
    """Bytes per element of the largest buffer."""
    return max(
        kernel.buffers, key=lambda item: hint(kernel, sympy.sympify(item.numel))
    ).dtype.itemsize


def _bytes_along(kernel: Kernel, loop: Range) -> int:
    """Bytes that are accessed contiguously along ``loop``, at most one element of a buffer for each
    point of the loops that select it.
    """
    buffers = {buffer.name: buffer for buffer in kernel.buffers}
    loops = (*kernel.ranges, *kernel.reduction)
    found: dict[str, int] = {}
    for step in kernel.steps:
        index = index_of(step) if step.is_access else None
        if index is None or stride(index, loop.symbol) != 1:
            continue
        buffer = buffers[str(step.args[0])]
        selecting = (item for item in loops if item.symbol in index.free_symbols)
        points = prod(hint(kernel, item.extent) for item in selecting)
        count = min(points, hint(kernel, sympy.sympify(buffer.numel)))
        found[buffer.name] = max(count * buffer.dtype.itemsize, found.get(buffer.name, 0))
    return sum(found.values())


def held_blocks(kernel: Kernel, tiling: Tiling, work: Workload) -> int:
    """The number of blocks at the end of a long row that stay in registers from the first pass to
    the last.
    """
    axis = tiling.reduction
    if tiling.config.persistent:
        return 0
    if axis is not None and tiling.config.grid:
        return work.reduction // axis.block
    if (
        axis is None
        or not work.static
        or work.passes < 2
        or work.scans
        or work.adds
        or work.crosses
        or not work.inner_contiguous
    ):
        return 0
    first = next(body for body in kernel.bodies if body.inner)
    read = accessed(first.instructions, "load")
    held = (
        HELD_ELEMENTS
        * 32
        * tiling.config.num_warps
        // (axis.block * tiling.config.x * max(1, len(read)))
    )
    return held if 0 < held < work.reduction // axis.block else 0


def _kept_bytes(kernel: Kernel) -> int:
    """Bytes of a row that successive passes read and none writes, if all reads are aligned
    multiples of 16 bytes; else 0.
    """
    extent = integer(kernel.reduction[0].extent) if len(kernel.reduction) == 1 else None
    others = {"scan", "indirect"} & kernel.ops or any(step.is_add for step in kernel.steps)
    if extent is None or others or kernel.sizes or _passes(kernel) < 2:
        return 0
    row, sizes = (
        kernel.reduction[0].symbol,
        {buffer.name: buffer.dtype.itemsize for buffer in kernel.buffers},
    )
    stored = accessed(kernel.steps, "store")
    found: dict[str, int] = {}
    for step in kernel.steps:
        index = index_of(step) if step.op == "load" else None
        if index is None or row not in index.free_symbols:
            continue
        name, lanes = str(step.args[0]), 16 // sizes[str(step.args[0])]
        starts = [stride(index, item.symbol) for item in kernel.ranges]
        first = index.subs(dict.fromkeys(index.free_symbols, 0))
        aligned = all(start is not None and start % lanes == 0 for start in (*starts, first))
        if (
            name in stored
            or step.args[2] is not None
            or stride(index, row) != 1
            or not any(starts)
            or not aligned
        ):
            return 0
        found[f"{name} {index}"] = extent * sizes[name]
    return sum(found.values()) if len(found) <= 2 else 0


def bytes_per_thread(tiling: Tiling, work: Workload) -> int:
    """Bytes per thread of a block of the reduction, for the widest type that is loaded or stored
    along it.
    """
    axis = tiling.reduction
    return max(1, (axis.block if axis else 1) * work.itemsize // (32 * tiling.config.num_warps))


def _passes(kernel: Kernel) -> int:
    """The number of passes of a looped reduction over its row."""
    return sum(isinstance(part, OnlinePair) or part.inner for part in one_pass(kernel.bodies))
