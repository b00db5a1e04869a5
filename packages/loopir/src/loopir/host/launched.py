"""Checks buffers that share memory against the actual launches: a generator may run a kernel as
several launches (clause C4.8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopir.backend import CodeGenerator, KernelSource, LaunchesParts
from loopir.errors import VerificationError
from loopir.ir.kernel import Kernel
from loopir.ir.program import Allocate, Launch, Program


def check_launches(
    program: Program, sources: Sequence[KernelSource], codegens: Mapping[str, CodeGenerator]
) -> None:
    """Raises VerificationError (C4.8) if a launch loads memory of an operand after it stored a
    result there.

    ``sources`` are those of the program's kernels, ``codegens`` the generators by device type.
    """
    shared: list[tuple[str, str]] = []
    for step in program.steps:
        if isinstance(step, Allocate) and step.in_place and step.reuses is not None:
            shared.append((step.reuses, step.buffer))
        elif isinstance(step, Launch):
            source = sources[step.kernel]
            codegen = codegens[source.kernel.device]
            if shared and isinstance(source.kernel, Kernel) and isinstance(codegen, LaunchesParts):
                declared = dict(
                    zip(
                        step.buffers, (buffer.name for buffer in source.kernel.buffers), strict=True
                    )
                )
                for operand, result in shared:
                    if operand in declared:  # else its last reader was an earlier step
                        check_shared(codegen.launched(source), declared[operand], declared[result])
            shared = []


def check_shared(parts: Sequence[Kernel], operand: str, result: str) -> None:
    """Raises VerificationError (C4.8) unless ``parts``, launched in order, can use the same memory
    for both buffers.
    """
    stored = ""
    for part in parts:
        accesses = [
            step for step in part.steps if step.is_access and step.args[0] in (operand, result)
        ]
        for step in accesses:
            if step.op == "load" and stored:
                message = (
                    f"{part.name} loads {operand} after {stored} stored {result} in the same memory"
                )
                raise VerificationError("C4.8", message)
            stored = part.name if step.op == "store" else stored
        if stored == part.name and len({step.args[1] for step in accesses}) > 1:
            message = (
                f"{part.name} loads {operand} at another index than it stores {result}, in the "
                f"same memory"
            )
            raise VerificationError("C4.8", message)
