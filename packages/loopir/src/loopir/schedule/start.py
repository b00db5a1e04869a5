"""Merges kernels that differ only in where their buffers start: the launch passes the start
offsets.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from loopir.ir.kernel import Instruction, Kernel, map_steps
from loopir.ir.simplify import ONE, ZERO, linear_parts

from .build import sizes_of


def move_starts(kernel: Kernel) -> tuple[Kernel, tuple[sympy.Expr, ...]]:
    """The kernel with each buffer cut to the elements that it accesses, and the offset of each
    buffer; no offsets if all are zero.

    A buffer stays whole where its start depends on sizes. So does one that does not start at a
    multiple of 16 bytes on devices other than CPUs, whose code depends on the alignment of
    addresses.
    """
    unit = 1 if kernel.device == "cpu" else 16
    moved: dict[str, tuple[sympy.Expr, sympy.Expr]] = {}
    for buffer in kernel.buffers:
        span = _span(kernel, buffer.name)
        if span is not None and span[0] * buffer.dtype.itemsize % unit == 0:
            moved[buffer.name] = span
    if not moved:
        return kernel, ()

    def shifted(step: Instruction) -> Instruction:
        name, *args = step.args
        if not step.is_access or name not in moved:
            return step
        return replace(step, args=(name, sympy.expand(args[0] - moved[name][0]), *args[1:]))  # type: ignore[index, operator]

    buffers = tuple(
        replace(b, numel=moved[b.name][1]) if b.name in moved else b for b in kernel.buffers
    )
    bodies = map_steps(shifted, kernel.bodies)
    sizes = sizes_of(bodies, kernel.ranges, kernel.reduction, buffers)
    hints = tuple((size, hint) for size, hint in kernel.hints if size in sizes)
    starts = tuple(moved[b.name][0] if b.name in moved else ZERO for b in kernel.buffers)
    return replace(kernel, buffers=buffers, bodies=bodies, sizes=sizes, hints=hints), starts if any(
        starts
    ) else ()


def _span(kernel: Kernel, buffer: str) -> tuple[sympy.Expr, sympy.Expr] | None:
    """The first element that the kernel accesses, and the count up to the last one; None where
    these are not numbers.
    """
    extents = {item.symbol: item.extent for item in (*kernel.ranges, *kernel.reduction)}
    if ZERO in extents.values():
        return None
    firsts, lasts = set(), set()
    for step in kernel.steps:
        if not step.is_access or step.args[0] != buffer:
            continue
        parts = linear_parts(step.args[1], extents)  # type: ignore[arg-type]
        if (
            parts is None
            or not parts[1].is_Integer
            or (step.op == "load" and step.args[2] is not None)
        ):
            return None
        strides, first = parts
        if any(not stride.is_nonnegative for stride in strides.values()):
            return None
        firsts.add(first)
        lasts.add(
            sympy.expand(
                first + sum(stride * (extents[loop] - 1) for loop, stride in strides.items())
            )
        )
    if not firsts or not all(last.is_Integer for last in lasts):
        return None
    return min(firsts), max(lasts) - min(firsts) + ONE
