"""The code generator (contract G)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch
from loopir import (
    ArtifactStore,
    Kernel,
    KernelSource,
    ToolError,
    UnsupportedKernelError,
    format_kernel,
)

from .plan import Plan

SCHEDULES = ("simple", "Mullapudi2016", "Li2018")
"""Not Adams2019: its errors end the process."""


class HalideCodeGenerator:
    """Halide pipelines for the CPU. ``schedule`` is "simple", or one of Halide's autoschedulers:
    "Mullapudi2016", "Li2018".
    """

    device = "cpu"

    def __init__(self, schedule: str = "simple") -> None:
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule is one of {', '.join(SCHEDULES)}, not {schedule!r}")
        self.schedule = schedule

    def identity(self) -> tuple[str, ...]:
        """What a program depends on beside the kernels' texts."""
        return (self.schedule,)

    def supports(self, kernel: Kernel) -> bool:
        """Whether Halide can say this kernel."""
        try:
            Plan(kernel)
        except UnsupportedKernelError:
            return False
        return True

    def generate(self, kernel: Kernel) -> KernelSource:
        """The kernel's text, if Halide can say it: the pipeline is made when it is built."""
        Plan(kernel)
        return KernelSource(kernel, format_kernel(kernel))

    def build(
        self, sources: Sequence[KernelSource], store: ArtifactStore
    ) -> list[Callable[..., None]]:
        """Compiles each pipeline in this process. Raises BuildError."""
        try:
            from .build import build_kernel  # noqa: PLC0415 - halide may be missing
        except ImportError as error:
            advice = "pip install 'halide>=21,<22', which has wheels for CPython 3.11"
            raise ToolError(f"halide can't be imported ({error}); {advice}") from error
        os.environ.setdefault("HL_NUM_THREADS", str(torch.get_num_threads()))
        return [build_kernel(source, self.schedule) for source in sources]
