"""Sums over rows that a row kernel accumulates: the gradients of a norm's weight and bias.

Such a store, ``mode="add"`` at an index that depends only on the reduction's symbols, would be one
atomic per element. If a row fits a block, a grid that just fills the device walks over the rows
instead; each program accumulates its sums in registers and writes them once, and a second kernel
adds the programs' shares in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy
from loopir import (
    Body,
    Instruction,
    Kernel,
    KernelBuffer,
    Range,
    Value,
    flat_position,
    map_steps,
    points_of,
    symbol,
)

from inductor_triton.kernels.indexing import integer


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """The row kernel with shares instead of sums, the shares' buffers, and the kernel that adds
    them up.
    """

    rows: Kernel
    shares: tuple[KernelBuffer, ...]
    combine: Kernel


def summed_columns(kernel: Kernel) -> tuple[str, ...]:
    """The buffers to which ``kernel`` adds one value per element of a row, at the same indices for
    each row; () if it also loads or stores one of them.
    """
    loops = {item.symbol for item in kernel.ranges}
    found: list[str] = []
    size = points_of(kernel.reduction)
    position = flat_position(kernel.reduction)
    for body in kernel.bodies:
        for step in body.instructions:
            if not step.is_add:
                continue
            buffer = next(item for item in kernel.buffers if item.name == step.args[0])
            whole = (
                sympy.expand(sympy.sympify(buffer.numel) - size) == 0 and integer(size) is not None
            )
            index = sympy.sympify(step.args[1])
            if (
                not body.inner
                or not whole
                or index.free_symbols & loops
                or sympy.expand(index - position) != 0
            ):  # type: ignore[operator]
                return ()
            found.append(buffer.name)
    touched = [step.args[0] for step in kernel.steps if step.is_access]
    return tuple(found) if all(touched.count(name) == 1 for name in found) else ()


def by_program(kernel: Kernel, sums: tuple[str, ...], programs: int) -> ColumnSums:
    """``kernel`` for a grid of ``programs``, each of which computes its share of ``sums``."""
    size = points_of(kernel.reduction)
    buffers = {item.name: item for item in kernel.buffers}
    shares = {
        name: KernelBuffer(f"{name}_shares", buffers[name].dtype, "out", programs * size)
        for name in sums
    }

    def moved(step: Instruction) -> Instruction:
        if step.op != "store" or step.args[0] not in shares:
            return step
        return replace(step, args=(shares[str(step.args[0])].name, *step.args[1:]))

    rows = replace(
        kernel,
        buffers=tuple(shares.get(item.name, item) for item in kernel.buffers),
        bodies=map_steps(moved, kernel.bodies),
    )
    place, program = map(symbol, ("place", "program_share"))
    inner: list[Instruction] = []
    outer: list[Instruction] = []
    for number, (name, share) in enumerate(shares.items()):
        dtype = share.dtype
        inner += [
            Instruction(
                f"a{number}", "load", (share.name, size * program + place, None, None), dtype
            ),
            Instruction(f"s{number}", "reduce", ("sum", Value(f"a{number}")), dtype),
        ]
        outer += [
            Instruction(f"b{number}", "load", (name, place, None, None), dtype),
            Instruction(f"t{number}", "add", (Value(f"b{number}"), Value(f"s{number}")), dtype),
            Instruction(None, "store", (name, place, Value(f"t{number}"), None), None),
        ]
    own = tuple(replace(share, role="in") for share in shares.values())
    combine = Kernel(
        name=f"{kernel.name}_combine",
        device=kernel.device,
        buffers=(*(buffers[name] for name in sums), *own),
        sizes=(),
        ranges=(Range(place, size),),
        reduction=(Range(program, sympy.Integer(programs)),),
        bodies=(Body(True, tuple(inner)), Body(False, tuple(outer))),
        vector_axis=place,
        origins=kernel.origins,
    )
    return ColumnSums(rows, tuple(shares.values()), combine)
