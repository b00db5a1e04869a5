"""The decisions about a kernel before its source is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import sympy
from loopir import Body, Instruction, Interval, Kernel, points_of

from inductor_triton.kernels.passes.instruction_selection import select_instructions
from inductor_triton.kernels.passes.online_softmax import OnlinePair, one_pass
from inductor_triton.spec import INT32_LIMIT, Config

from .facts import Facts, narrow_values
from .indexing import Bounds, bounds, indices, integer
from .scaling import Scaling, scaling_of, walking
from .tiling import Tiling, bytes_per_thread, choose_tiling, describe, held_blocks, weight
from .value_bounds import proven_indices

Part = Body | OnlinePair


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """A kernel and how it is written.

    Attributes:
        kernel: the kernel, with merged loops and the bodies from which ``parts`` are selected.
        tiling: how its loops are spread over programs and blocks.
        parts: the bodies with the instructions to write; some pairs of bodies are a single part.
        index_type: ``int32``, ``int64``, or ``dynamic`` if each call decides.
        limits: indices may be ``int32`` if all of these sizes fit it.
        operations: the approximate number of machine instructions per part.
        blocks_held: number of blocks at the end of a row that stay in registers between two passes.
        bytes_per_thread: bytes per thread of a block of the reduction.
        scaling: the product with a number that the kernel computes, if it does nothing else.
        proven: the indirect indices that need no check.
    """

    kernel: Kernel
    tiling: Tiling
    parts: tuple[Part, ...]
    index_type: str
    limits: tuple[sympy.Expr, ...] = ()
    operations: tuple[int, ...] = ()
    blocks_held: int = 0
    bytes_per_thread: int = 0
    scaling: Scaling | None = None
    symbol_bounds: Bounds = field(default_factory=dict)
    proven: frozenset[str] = frozenset()

    @property
    def bodies(self) -> list[Body]:
        """The parts that are bodies, not pairs."""
        return [part for part in self.parts if isinstance(part, Body)]

    @property
    def steps(self) -> list[Instruction]:
        """The instructions of all parts, in order."""
        return [step for part in self.parts for step in _instructions(part)]

    @property
    def checks_indices(self) -> bool:
        """Whether an indirect index may be out of range."""
        return any(s.op == "indirect" and s.result not in self.proven for s in self.steps)


def plan_kernel(kernel: Kernel, config: Config | None = None) -> KernelPlan:
    """The plan of ``kernel``, whose loops must be merged, with the block sizes of ``config`` or of
    the heuristics.
    """
    work, scaling = describe(kernel), scaling_of(kernel)
    tiling = choose_tiling(kernel, work, config)
    if scaling is not None and len(tiling.axes) == 1:
        tiling = replace(tiling, config=walking(kernel, tiling.config))
    held = held_blocks(kernel, tiling, work)
    passes = one_pass(kernel.bodies)
    pairs = [part for part in passes if isinstance(part, OnlinePair)]
    stays_in_registers = tiling.config.persistent or tiling.config.grid > 0
    parts = kernel.bodies if stays_in_registers else tuple(passes)
    known = symbol_bounds(kernel)
    limits, index_type = index_width(kernel, tiling, known)
    facts = Facts(
        kernel.steps,
        kernel.dtypes,
        config=tiling.config,
        axes={item.symbol: axis.name for axis in tiling.axes for item in axis.loops},
        symbol_bounds=known,
        index_type=index_type,
        softmaxes=pairs if held or not stays_in_registers or _are_narrow(kernel, pairs) else (),
        row=_row_in_registers(tiling),
    )
    return KernelPlan(
        kernel,
        tiling,
        select_parts(parts, facts),
        index_type,
        limits,
        tuple(sum(map(weight, _instructions(part))) for part in parts),
        held,
        bytes_per_thread(tiling, work),
        scaling,
        known,
        proven_indices(kernel.steps, known),
    )


def _are_narrow(kernel: Kernel, pairs: Sequence[OnlinePair]) -> bool:
    """Whether all exponentials, those apart that are only summed, are rounded to 16 bits on every
    path to memory. Then they may be those of the sums, whose errors matter to the sums alone.
    """
    narrow = narrow_values(kernel.steps, kernel.dtypes)
    summed = {str(pair.total.args[1]) for pair in pairs}
    readers = (step for step in kernel.steps if summed.intersection(step.reads))
    exponentials = {str(step.result) for step in kernel.steps if step.op == "exp"}
    return all(step.op == "reduce" for step in readers) and exponentials <= narrow | summed


def select_parts(parts: Sequence[Part], facts: Facts) -> tuple[Part, ...]:
    """``parts`` with the instructions to write."""
    blocks = select_instructions([_own_instructions(part) for part in parts], facts)
    return tuple(
        replace(part, operand=block[:-1])
        if isinstance(part, OnlinePair)
        else replace(part, instructions=block)
        for part, block in zip(parts, blocks, strict=True)
    )


def _own_instructions(part: Part) -> tuple[Instruction, ...]:
    """The instructions of a part that selection rules may replace, and those that read them."""
    return (*part.operand, part.maximum) if isinstance(part, OnlinePair) else part.instructions


def _instructions(part: Part) -> tuple[Instruction, ...]:
    total = (part.total,) if isinstance(part, OnlinePair) else ()
    return (*_own_instructions(part), *total)


def _row_in_registers(tiling: Tiling) -> sympy.Symbol | None:
    """The loop over a row if a grid walks over rows that stay in registers between two passes."""
    row = tiling.reduction
    if row is None or len(row.loops) != 1 or tiling.config.persistent or not tiling.config.grid:
        return None
    return row.loops[0].symbol


def symbol_bounds(kernel: Kernel) -> Bounds:
    """The ranges of the loop symbols."""
    known: dict[sympy.Symbol, Interval] = {}
    for item in (*kernel.ranges, *kernel.reduction):
        extent = integer(item.extent)
        known[item.symbol] = Interval(0, math.inf if extent is None else max(extent - 1, 0))
    return known


def index_width(
    kernel: Kernel, tiling: Tiling, known: Bounds
) -> tuple[tuple[sympy.Expr, ...], str]:
    """The sizes on which the type of indices depends, and that type."""
    sizes = [sympy.sympify(buffer.numel) for buffer in kernel.buffers]
    sizes += [axis.extent for axis in tiling.axes]
    sizes.append(points_of(tiling.batch, kernel.ranges))
    largest = max((bounds(expr, known).hi for expr in indices(kernel.steps)), default=0)
    static = [value for value in map(integer, sizes) if value is not None]
    if max(static, default=0) > INT32_LIMIT or (math.isfinite(largest) and largest > INT32_LIMIT):
        return (), "int64"
    symbolic = tuple(dict.fromkeys(expr for expr in sizes if integer(expr) is None))
    return symbolic, "dynamic" if symbolic else "int32"
