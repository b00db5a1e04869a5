"""A code generator whose kernels are evaluated: slow, on any device, and right by definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from loopir.backend import KernelSource, Run
from loopir.cache.store import ArtifactStore
from loopir.ir.evaluate import evaluate_expr, evaluate_kernel
from loopir.ir.kernel import Kernel, KernelBuffer
from loopir.ir.parse import parse_kernel
from loopir.ir.template import Template, evaluate_template, format_template
from loopir.ir.text import format_kernel


@dataclass(frozen=True, slots=True)
class EvaluatorCodeGenerator:
    """Its source is the kernel's text, which building parses back."""

    device: str = "cpu"

    def generate(self, kernel: Kernel) -> KernelSource:
        """The text form."""
        return KernelSource(kernel, format_kernel(kernel))

    def build(
        self, sources: Sequence[KernelSource], store: ArtifactStore
    ) -> list[Callable[..., None]]:
        """Callables that evaluate."""
        return [
            _launcher(s.kernel if isinstance(s.kernel, Template) else parse_kernel(s.text))
            for s in sources
        ]

    def link(
        self, sources: Sequence[KernelSource], runs: Sequence[Run], store: ArtifactStore
    ) -> list[Callable[..., None]]:
        """Callables that evaluate the kernels of a run one after the other."""
        launchers = self.build(sources, store)
        return [
            _run_launcher(run, [source.kernel for source in sources], launchers) for run in runs
        ]


class EvaluatorTemplates(EvaluatorCodeGenerator):
    """Also takes every matrix product and convolution as a template."""

    template_ops = tuple(
        getattr(torch.ops.aten, name).default
        for name in ("mm", "addmm", "bmm", "baddbmm", "convolution")
    )

    def refuses(self, template: Template) -> str:
        """Never."""
        return ""

    def generate_template(self, template: Template) -> KernelSource:
        """The text, to be read; what runs is the template itself."""
        return KernelSource(template, format_template(template))


def _launcher(kernel: Kernel | Template) -> Callable[..., None]:
    count = len(kernel.buffers)
    evaluate: Callable[..., None] = (
        evaluate_template if isinstance(kernel, Template) else evaluate_kernel
    )

    def launch(*args: torch.Tensor | int) -> None:
        evaluate(kernel, args[:count], args[count:])

    return launch


def _run_launcher(
    run: Run, kernels: Sequence[Kernel | Template], launchers: Sequence[Callable[..., None]]
) -> Callable[..., None]:
    def launch(*args: torch.Tensor | int) -> None:
        values = {
            symbol.name: value for symbol, value in zip(run.sizes, args[run.tensors :], strict=True)
        }  # type: ignore[attr-defined]
        for call in run.calls:
            kernel = kernels[call.source]
            sizes = [int(evaluate_expr(size, values)) for size in call.sizes]  # type: ignore[arg-type]
            known = dict(zip((size.name for size in kernel.sizes), sizes, strict=True))  # type: ignore[attr-defined]
            tensors = [
                _piece(
                    args[place.parameter],  # type: ignore[arg-type]
                    int(evaluate_expr(place.offset, values)),
                    buffer,
                    known,
                )
                for place, buffer in zip(call.places, kernel.buffers, strict=True)
            ]
            launchers[call.source](*tensors, *sizes)

    return launch


def _piece(tensor: torch.Tensor, offset: int, buffer: KernelBuffer, sizes: dict) -> torch.Tensor:
    """A kernel's buffer: the tensor itself, or elements of it or of the slab from a byte offset
    on.
    """
    if tensor.dtype == buffer.dtype and offset == 0:
        return tensor
    numel = int(evaluate_expr(buffer.numel, sizes))
    if tensor.dtype == buffer.dtype:
        return tensor.as_strided(
            (numel,), (1,), tensor.storage_offset() + offset // buffer.dtype.itemsize
        )
    if numel == 0:
        return tensor.new_empty(0, dtype=buffer.dtype)
    return tensor.view(torch.uint8)[offset : offset + numel * buffer.dtype.itemsize].view(
        buffer.dtype
    )
