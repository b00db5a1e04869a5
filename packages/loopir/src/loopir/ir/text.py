"""Kernels as text, in a subset of Python; :func:`loopir.parse_kernel` parses it.

The dtype of an operation is printed only if it doesn't follow from the operands. Files begin with
the line of :data:`KERNELS` that states the version; within a process it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import sympy
import torch
from symshapes.text.form import TextForm

from .expr import format_expr
from .kernel import Instruction, Kernel, KernelBuffer
from .ops import ARGUMENTS, OPS, DtypeRule

KERNELS = TextForm("loopir.kernel", 1)
"""A change to the grammar, or to what an operation means, raises the version."""
Hints: TypeAlias = Iterable[tuple[sympy.Symbol, int]]
INDENT = "    "
ROLES = {"in": "In", "out": "Out", "inout": "InOut"}


def format_dtype(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def format_number(number: float | int | bool) -> str:
    """A Python literal, or ``inf``, ``-inf``, ``nan``."""
    if isinstance(number, float) and not math.isfinite(number):
        return "nan" if math.isnan(number) else ("inf" if number > 0 else "-inf")
    return repr(number)


def format_kernel(kernel: Kernel) -> str:
    """The kernel as text: ``parse_kernel(format_kernel(k)) == k``. Origins are comments."""
    parameters = [format_buffer(buffer) for buffer in kernel.buffers]
    parameters += [format_size(kernel.hints, size) for size in kernel.sizes]
    vector = f", vector={kernel.vector_axis.name!r}" if kernel.vector_axis is not None else ""
    tile = f", tile={kernel.tile_axis.name!r}" if kernel.tile_axis is not None else ""
    lines = [f"# {name}: {' '.join(line.split())}".rstrip(": ") for name, line in kernel.origins]
    lines += [
        f"@kernel(device={kernel.device!r}{vector}{tile})",
        f"def {kernel.name}({', '.join(parameters)}):",
    ]
    depth = 1
    for item in kernel.ranges:
        lines.append(
            f"{INDENT * depth}for {item.symbol.name} in range({format_expr(item.extent)}):"
        )
        depth += 1
    for body in kernel.bodies:
        inner = depth
        for item in kernel.reduction if body.inner else ():
            lines.append(
                f"{INDENT * inner}for {item.symbol.name} in reduce({format_expr(item.extent)}):"
            )
            inner += 1
        lines += [
            f"{INDENT * inner}{format_instruction(instruction)}"
            for instruction in body.instructions
        ]
    return "\n".join(lines) + "\n"


def format_size(hints: Hints, size: sympy.Symbol) -> str:
    """``s0: Size(hint=8)``."""
    known = dict(hints)
    return f"{size.name}: Size({f'hint={known[size]}' if size in known else ''})"


def format_sizes(sizes: Iterable[sympy.Expr]) -> str:
    """The sizes as a Python tuple."""
    parts = [format_expr(size) for size in sizes]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def format_buffer(buffer: KernelBuffer) -> str:
    """``in0: In('float32', 64*s0)``."""
    return (
        f"{buffer.name}: {ROLES[buffer.role]}({format_dtype(buffer.dtype)!r}, "
        f"{format_expr(buffer.numel)})"
    )


def format_instruction(instruction: Instruction) -> str:
    """One line, without indentation."""
    op, args = instruction.op, instruction.args
    kinds = ARGUMENTS.get(op) or ("value",) * len(args)
    shown = [FORMATS[kind](arg) for kind, arg in zip(kinds, args)]
    if OPS[op].rule is DtypeRule.GIVEN and instruction.dtype is not None:
        shown.append(repr(format_dtype(instruction.dtype)))
    if op == "load" and args[2] is not None:
        shown += [f"mask={args[2]}", f"other={format_number(args[3])}"]  # type: ignore[arg-type]
    if op == "store" and args[3] is not None:
        shown.append(f"mode={args[3]!r}")
    text = f"{method_name(op)}({', '.join(shown)})"
    return text if instruction.result is None else f"{instruction.result} = {text}"


def method_name(op: str) -> str:
    """The Python name of an operation: ``and_``, ``or_``, ``not_`` for those that are keywords."""
    return f"{op}_" if op in ("and", "or", "not") else op


def _index(expr: object) -> str:
    if not isinstance(expr, sympy.Expr | int):
        raise TypeError(f"not an index expression: {expr!r}")
    return format_expr(expr)


FORMATS: dict[str, Callable[[Any], str]] = {
    "buffer": str,
    "value": str,
    "kind": repr,
    "number": format_number,
    "expression": _index,
    "index": lambda expr: f"[{_index(expr)}]",
}
