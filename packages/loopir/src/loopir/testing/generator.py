"""A code generator whose kernels are evaluated: slow, on any device, and right by definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from loopir.backend import KernelSource
from loopir.evaluate import evaluate_kernel
from loopir.kernel import Kernel
from loopir.parse import parse_kernel
from loopir.store import ArtifactStore
from loopir.text import format_kernel


@dataclass(frozen=True, slots=True)
class EvaluatorCodeGenerator:
    """Its source is the kernel's text, which building parses back."""

    device: str = "cpu"

    def generate(self, kernel: Kernel) -> KernelSource:
        """The text form."""
        return KernelSource(kernel, format_kernel(kernel))

    def build(self, sources: Sequence[KernelSource], store: ArtifactStore) -> list[Callable[..., None]]:
        """Callables that evaluate."""
        return [_launcher(parse_kernel(source.text)) for source in sources]


def _launcher(kernel: Kernel) -> Callable[..., None]:
    count = len(kernel.buffers)

    def launch(*args: torch.Tensor | int) -> None:
        evaluate_kernel(kernel, args[:count], args[count:])  # type: ignore[arg-type]

    return launch
