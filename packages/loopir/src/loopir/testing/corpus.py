"""The corpus: kernels and programs as text, each with inputs and the results that they have.

A file is never changed: what it means holds for every later version. ``python -m loopir.testing
corpus`` checks all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from symshapes.testing.report import Refused, Report
from symshapes.testing.stored import StoredCase, check_stored, read_cases

from loopir.backend import CodeGenerator, SelectsKernels
from loopir.cache.store import ArtifactStore
from loopir.host.host_builder import build_host, generate
from loopir.ir.evaluate import evaluate_kernel
from loopir.ir.kernel import Kernel
from loopir.ir.parse import parse_kernel
from loopir.ir.program import Program
from loopir.ir.program_reader import parse_program
from loopir.ir.program_text import format_program
from loopir.ir.text import KERNELS, format_kernel
from loopir.ir.verify import check_kernel

from .generator import EvaluatorTemplates

FOLDER = Path(__file__).with_name("corpus")


def stored_kernels() -> list[StoredCase]:
    """The kernels; they are given the tensors of their inputs, then their sizes."""
    return read_cases(FOLDER / "kernels")


def stored_programs() -> list[StoredCase]:
    """The programs."""
    return read_cases(FOLDER / "programs")


def check_corpus(strict: bool = True) -> Report:
    """All files of the corpus: read, checked, evaluated and printed."""
    report = Report("corpus", "loopir", "files")
    check_stored(report, "kernels", stored_kernels(), _checked, write_kernel, run_kernel)
    run = _Runner(EvaluatorTemplates())
    check_stored(report, "programs", stored_programs(), parse_program, format_program, run)
    if strict:
        report.raise_if_wrong()
    return report


def check_programs(report: Report, generator: CodeGenerator, store: ArtifactStore) -> None:
    """Adds to a report every tenth stored program, with the kernels of a generator."""
    cases = [case for case in stored_programs() if "@template" not in case.text]
    run = _Runner(generator, store)
    check_stored(report, "stored programs", cases[::10], parse_program, format_program, run)


def _checked(text: str) -> Kernel:
    kernel = parse_kernel(text)
    check_kernel(kernel)
    return kernel


def write_kernel(kernel: Kernel) -> str:
    """The kernel as the text of a file."""
    return KERNELS.write(format_kernel(kernel))


def run_kernel(
    kernel: Kernel,
    given: Sequence[Any],
    launch: Callable[..., None] | None = None,
    device: str = "cpu",
) -> list[torch.Tensor]:
    """What a kernel writes, evaluated or by ``launch``."""
    sizes = [value for value in given if isinstance(value, int)]
    values = iter([value.clone() for value in given if isinstance(value, torch.Tensor)])
    known: dict[Any, int] = dict(zip(kernel.sizes, sizes, strict=True))
    tensors = [
        torch.zeros(int(buffer.numel.subs(known)), dtype=buffer.dtype)
        if buffer.role == "out" else next(values)
        for buffer in kernel.buffers
    ]  # fmt: skip
    if launch is None:
        evaluate_kernel(kernel, tensors, sizes)
    else:
        tensors = [tensor.to(device) for tensor in tensors]
        launch(*tensors, *sizes)
    return [tensor.cpu() for buffer, tensor in zip(kernel.buffers, tensors) if buffer.role != "in"]


class _Runner:
    """Runs programs with the kernels of a code generator."""

    def __init__(self, generator: CodeGenerator, store: ArtifactStore | None = None) -> None:
        self.generators = {"cpu": generator}
        self.store = store or ArtifactStore()

    def __call__(self, program: Program, given: Sequence[Any]) -> Sequence[Any]:
        generator = self.generators["cpu"]
        for kernel in program.kernels:
            if (
                isinstance(generator, SelectsKernels)
                and isinstance(kernel, Kernel)
                and not generator.supports(kernel)
            ):
                raise Refused(f"{kernel.name} is not supported")
        sources = generate(program, self.generators)
        host = build_host(program, sources, self.generators, self.store)
        return host(*(x.clone() if isinstance(x, torch.Tensor) else x for x in given))
