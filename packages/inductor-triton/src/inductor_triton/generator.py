"""The code generator for CUDA devices, and a function that compiles a graph with it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import loopir
import torch
from loopir import (
    ArtifactStore,
    Attention,
    BuildError,
    Kernel,
    KernelSource,
    Run,
    Template,
    decide,
    kernel_label,
    using_choices,
)
from torch._ops import OpOverload

from inductor_triton.attention import offered as offered_attention
from inductor_triton.attention import operator as attention_operator
from inductor_triton.cuda_graphs.replay import accelerate
from inductor_triton.kernels.codegen import generate_sequence
from inductor_triton.launching.fallback import compilable
from inductor_triton.launching.launch import Launcher, UnsupportedDeviceError, build_launchers
from inductor_triton.launching.launch_plan import link_plans, link_runs, run_calls
from inductor_triton.launching.shared_launches import share_launches
from inductor_triton.launching.stored_plans import describe_plans, read_plans
from inductor_triton.products.convolution import as_product
from inductor_triton.products.product import (
    CONVOLUTION,
    MATMULS,
    Product,
    product_of,
    unprofitable,
)
from inductor_triton.tuning.autotune import generate_any, slower_than_library, tuned_sources

from .spec import by_source, parts_of, sequence_of
from .toolchain import load_interpreter

HOPPER = (9, 0)
OPERATORS = (attention_operator, offered_attention)
"""The modules that implement operators on CUDA devices."""


@dataclass(slots=True, eq=False)
class TritonCodeGenerator:
    """Turns kernels into Triton kernels (contract G).

    With ``interpret`` they run in Triton's interpreter on CPU tensors (``device="cpu"`` then),
    slowly and without a GPU.

    ``templates``: whether matrix products and convolutions of single points with loops before or
    after them become Triton kernels: if a model of the device predicts a gain, whenever possible,
    or never.

    With ``tune``, configurations and templates are chosen by measurement on the current device;
    ``lock`` is a file that stores and replays the choices.

    ``synchronous_errors`` makes a launch wait for the device if an index may be out of range, so
    that the IndexError comes from the launch that caused it and not from a later one.
    """

    device: str = "cuda"
    interpret: bool = False
    synchronous_errors: bool = False
    makes_slabs: bool = field(default=True, init=False)
    templates: Literal["model", "always", "never"] = "model"
    tune: bool = False
    lock: str | None = None

    template_ops: ClassVar[tuple[OpOverload, ...]] = (*MATMULS, CONVOLUTION)

    def identity(self) -> tuple[str, ...] | None:
        """The settings and the current device; None if choices come from measuring it."""
        if self._measures:
            return None
        known = (
            (torch.cuda.get_device_name(), str(torch.cuda.get_device_capability()))
            if torch.cuda.is_available()
            else ()
        )
        return (str(self.interpret), self.templates, *known)

    def generate(self, kernel: Kernel) -> KernelSource:
        """The Triton source of ``kernel``; pure and deterministic, needs neither Triton nor a
        GPU.
        """
        return generate_sequence(kernel)

    def launched(self, source: KernelSource) -> list[Kernel]:
        """The kernels that a source launches, in order."""
        return [part.kernel for part in parts_of([source]) if isinstance(part.kernel, Kernel)]

    def refuses(self, template: Template) -> str:
        """Why a matrix product or convolution stays a library call (contract T5)."""
        if self.templates == "never":
            return "templates are off"
        found = product_of(as_product(template))
        if found is None:
            return (
                "no product of float16, bfloat16 or float32 matrices of one type, or a very long "
                "one of float32"
            )
        reason = ""

        def is_preferred() -> bool:
            nonlocal reason
            reason = self._slower(template, found)
            return not reason

        takes = decide("templates", functools.partial(kernel_label, template), is_preferred)
        return "" if takes else reason or "the lock file has the library's operator"

    def _slower(self, template: Template, found: Product) -> str:
        """Why a template is expected, or measured, not to be faster; empty if it is."""
        if self._measures:
            with using_choices(None):
                return slower_than_library(template, ArtifactStore(or_temporary=True), self.lock)
        if self.templates != "model":
            return ""
        known = not torch.cuda.is_available() or torch.cuda.get_device_capability() >= HOPPER
        return unprofitable(template, found) if known else "the model is one of Hopper and later"

    def generate_template(self, template: Template) -> KernelSource:
        """The Triton source of a matrix product or convolution with its loops; pure and
        deterministic.
        """
        return generate_any(as_product(template))

    def offer_attention(self, attention: Attention) -> OpOverload | None:
        """The operator for attention of few queries on CUDA devices."""
        return offered_attention.offered(attention) if self.device == "cuda" else None

    def build(
        self, sources: Sequence[KernelSource], store: ArtifactStore
    ) -> list[Callable[..., None]]:
        """One callable per source. Raises BuildError if Triton, the driver or a device is missing,
        or if Triton fails.
        """
        sources = self._tuned(sources, store)
        if self.interpret:
            load_interpreter()
            from inductor_triton.launching.interpret import interpreted  # noqa: PLC0415 - needs numpy, which is optional

            built = [*map(interpreted, parts_of(sources))]
        else:
            built = self._launchers(parts_of(sources), store)
        return list(map(in_sequence, sources, by_source(sources, built)))

    def link(
        self, sources: Sequence[KernelSource], runs: Sequence[Run], store: ArtifactStore
    ) -> list[Callable[..., None]]:
        """``build`` for runs of launches (contract G4): one callable per run, taking its tensors
        and then its sizes.
        """
        sources, runs = share_launches(self._tuned(sources, store), runs)
        if self.interpret:
            calls = self.build(sources, store)
            return [run_calls(run, sources, calls) for run in runs]
        build = functools.partial(self._launchers, store=store)
        return link_runs(sources, runs, store, build, self.synchronous_errors)

    def describe_launchers(self, launchers: Sequence[Any]) -> str | None:
        """JSON about what ``link`` returned: plans, and the sources of their kernels. None for
        kernels in the interpreter, and for those that use the copy engine.
        """
        plans = [launch.resolver.plan for launch in launchers if hasattr(launch, "resolver")]
        return describe_plans(plans) if len(plans) == len(launchers) else None

    def load_launchers(self, text: str, store: ArtifactStore) -> list[Callable[..., None]] | None:
        """The launchers of plans. None if a kernel can't be built; then it has to be generated with
        smaller blocks.
        """
        build = functools.partial(
            build_launchers, store=store, synchronous_errors=self.synchronous_errors
        )
        try:
            plans = read_plans(text, build)
        except BuildError:
            return None
        return link_plans(plans, store, self.synchronous_errors)

    @property
    def _measures(self) -> bool:
        return self.tune and not self.interpret and torch.cuda.is_available()

    def _tuned(
        self, sources: Sequence[KernelSource], store: ArtifactStore
    ) -> Sequence[KernelSource]:
        return tuned_sources(sources, store, self.lock) if self._measures else sources

    def _launchers(
        self, parts: Sequence[KernelSource], store: ArtifactStore, device: int | None = None
    ) -> list[Launcher]:
        build = functools.partial(
            build_launchers, store=store, synchronous_errors=self.synchronous_errors, device=device
        )
        try:
            return build(parts)
        except BuildError as error:
            if not torch.cuda.is_available() or isinstance(error, UnsupportedDeviceError):
                raise
            return build(compilable(parts, lambda part: build([part])))


def in_sequence(source: KernelSource, calls: Sequence[Callable[..., None]]) -> Callable[..., None]:
    """One callable for a source from those of its parts; the buffers between them are allocated at
    each call.
    """
    sequence = sequence_of(source)
    if sequence.parts[0] is source:
        return calls[0]
    names = [buffer.name for buffer in (*source.kernel.buffers, *sequence.scratch)]
    takes = [
        [names.index(buffer.name) for buffer in part.kernel.buffers] for part in sequence.parts
    ]

    given = len(source.kernel.buffers)

    def launch(*arguments: object) -> None:
        device = arguments[0].device  # type: ignore[attr-defined]
        scratch = [
            torch.empty(int(item.numel), dtype=item.dtype, device=device)
            for item in sequence.scratch
        ]
        tensors, sizes = (*arguments[:given], *scratch), arguments[given:]
        for call, positions in zip(calls, takes):
            call(*[tensors[position] for position in positions], *sizes)

    return launch


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    interpret: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """``loopir.compile_graph`` with Triton kernels: a graph backend (contract B) for graphs on CUDA
    devices.

    With ``interpret``, kernels of both device types run in Triton's interpreter on CPU tensors.
    ``options`` are those of ``loopir.compile_graph``.
    """
    cuda = TritonCodeGenerator(interpret=interpret)
    cpu = TritonCodeGenerator(device="cpu", interpret=True)
    codegens = {"cuda": cuda, "cpu": cpu} if interpret else {"cuda": cuda}
    host = loopir.compile_graph(gm, example_inputs, codegens=codegens, **options)
    return host if interpret else accelerate(host)
