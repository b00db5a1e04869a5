"""What a kernel keeps 16 bits of: such values are computed to that precision, gelu as one function
of its argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from loopir import Body, Instruction, Kernel, Value, definitions

INVERSE_SQRT2 = 0.7071067811865476
GELU = "gelu"
"""The operation ``x/2 * (1 + erf(x/sqrt 2))``, times a second operand if there is one; of this
package only.
"""
SMALLEST_FACTOR = 2.0**-16
Dtypes = Mapping[str, torch.dtype]


def narrow_values(steps: Sequence[Instruction], dtypes: Dtypes) -> frozenset[str]:
    """The values of which every path to memory rounds to at most 16 bits. ``dtypes``: those of the
    buffers; one that is not among them is a matrix operand of 16 bits.
    """
    wide: set[str] = set()
    for step in reversed(steps):
        if step.op == "cast" and step.dtype is not None and is_narrow(step.dtype):
            continue
        stores_narrow = step.op == "store" and is_narrow(
            dtypes.get(str(step.args[0]), torch.float16)
        )
        if (
            step.op == "indirect"
            or (step.op == "store" and not stores_narrow)
            or step.result in wide
        ):
            wide.update(step.reads)
    return frozenset(step.result for step in steps if step.result is not None) - wide


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether a type is a float of at most 16 bits."""
    return dtype.is_floating_point and dtype.itemsize <= 2


def with_gelu(kernel: Kernel) -> Kernel:
    """``kernel`` with its narrow gelus as one operation each."""
    steps = kernel.steps
    fused = fused_gelu(steps, {buffer.name: buffer.dtype for buffer in kernel.buffers})
    if fused is steps:
        return kernel
    kept = definitions(fused)
    bodies = []
    for body in kernel.bodies:
        found = (
            step if step.result is None else kept.get(step.result) for step in body.instructions
        )
        bodies.append(Body(body.inner, tuple(step for step in found if step is not None)))
    return replace(kernel, bodies=tuple(body for body in bodies if body.instructions))


def fused_gelu(steps: list[Instruction], dtypes: Dtypes) -> list[Instruction]:
    """``steps`` with narrow gelus as one operation each, without what only they used; ``steps``
    itself where there are none.
    """
    known = definitions(steps)
    found = {
        str(step.result): x for step in steps if (x := _argument_of_gelu(step, known)) is not None
    }
    narrow = narrow_values(steps, dtypes) if found else frozenset()
    found = {name: x for name, x in found.items() if name in narrow}
    if not found:
        return steps
    steps = [
        replace(step, op=GELU, args=(found[str(step.result)],))
        if str(step.result) in found
        else step
        for step in steps
    ]
    parts = {"mul", "add", "erf", "constant"}
    uses = Counter(name for step in steps for name in step.reads)
    kept: list[Instruction] = []
    for step in reversed(steps):
        if step.op in parts and step.result is not None and not uses[step.result]:
            uses.subtract(step.reads)
        else:
            kept.append(step)
    return _with_factors(kept[::-1])


def _with_factors(steps: list[Instruction]) -> list[Instruction]:
    """``steps`` with gelus that are only multiplied by a positive constant, as dropout does, as one
    operation with it.
    """
    known = definitions(steps)
    uses = Counter(name for step in steps for name in step.reads)
    found: dict[str, Instruction] = {}
    gone: set[str] = set()
    for step in steps:
        for gelu, factor in (step.args, step.args[::-1]) if step.op == "mul" else ():
            inner, constant = known.get(str(gelu)), known.get(str(factor))
            if (
                inner is None
                or constant is None
                or inner.op != GELU
                or constant.op != "constant"
                or uses[str(gelu)] > 1
            ):
                continue
            if SMALLEST_FACTOR < constant.args[0] < 1 / SMALLEST_FACTOR:  # type: ignore[operator]
                found[str(step.result)] = replace(
                    inner, result=step.result, args=(*inner.args, constant.args[0])
                )
                gone.add(str(gelu))
    return [found.get(str(step.result), step) for step in steps if step.result not in gone]


def _argument_of_gelu(step: Instruction, known: Mapping[str, Instruction]) -> Value | None:
    """x where a float32 step is ``x/2 * (1 + erf(x/sqrt 2))``, in any order of operands."""
    if step.op != "mul" or step.dtype is not torch.float32:
        return None
    for half, total in (step.args, step.args[::-1]):
        x, grown = _scaled(half, 0.5, known), _with_constant(total, "add", 1.0, known)
        erf = known.get(str(grown))
        if (
            x is not None
            and erf is not None
            and erf.op == "erf"
            and _scaled(erf.args[0], INVERSE_SQRT2, known) == x
        ):
            return x
    return None


def _scaled(operand: object, factor: float, known: Mapping[str, Instruction]) -> Value | None:
    return _with_constant(operand, "mul", factor, known)


def _with_constant(
    operand: object, op: str, number: float, known: Mapping[str, Instruction]
) -> Value | None:
    """The other operand where ``operand`` is ``op`` of it and a constant."""
    step = known.get(str(operand))
    if step is None or step.op != op:
        return None
    for constant, other in (step.args, step.args[::-1]):
        found = known.get(str(constant))
        if (
            found is not None
            and found.op == "constant"
            and found.args[0] == number
            and isinstance(other, Value)
        ):
            return other
    return None
