"""The code generator for the CPU (contract G) and the graph backend made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import loopir
import torch
from loopir import KernelSource

from inductor_cpp import building, kernels
from inductor_cpp.building.toolchain import find_toolchain, target
from inductor_cpp.running import packing
from inductor_cpp.running.contraction import offer_contraction, processor_identity

from .heap import keep_freed_memory

if TYPE_CHECKING:
    from loopir import ArtifactStore, Contraction, HostProgram, Kernel, Offer, Options, Run

    from inductor_cpp.building.toolchain import Toolchain


PACKING = frozenset(str(operator) for operator in (packing.CONVOLUTION, packing.LINEAR))


class CppCodeGenerator:
    """Vectorised C++ with OpenMP. ``toolchain`` fixes compiler and instruction set; None finds them
    at the first build.
    """

    device = "cpu"

    def __init__(self, toolchain: Toolchain | None = None) -> None:
        self._given = self._toolchain = toolchain

    @property
    def toolchain(self) -> Toolchain:
        """The compiler and instruction set in use. Raises BuildError when there is no compiler."""
        if self._toolchain is None:
            self._toolchain = find_toolchain()
        return self._toolchain

    def identity(self) -> tuple[str, ...]:
        """What offers depend on: sources are the same on every machine."""
        return processor_identity()

    def generate(self, kernel: Kernel) -> KernelSource:
        """C++ text of ``kernel``; the same on every machine, since the lane count is the
        header's.
        """
        return KernelSource(kernel, kernels.kernel_text(kernel))

    def build(
        self, sources: Sequence[KernelSource], store: ArtifactStore
    ) -> list[Callable[..., None]]:
        """Compiles all kernels at once; one callable per source, taking the buffers' tensors in
        order, then the sizes.

        Raises BuildError when the compiler is missing or fails; a launch raises IndexError for an
        index out of range.
        """
        return building.build_kernels(sources, store, self.toolchain) if sources else []

    def offer(self, contraction: Contraction) -> Offer | None:
        """Convolution and linear layers through oneDNN, with the pointwise operations after
        them.
        """
        return offer_contraction(contraction)

    def link(
        self, sources: Sequence[KernelSource], runs: Sequence[Run], store: ArtifactStore
    ) -> list[Callable[..., None]]:
        """``build`` for runs of launches: one callable per run, taking its tensors and then its
        sizes.
        """
        keep_freed_memory()
        return building.link_runs(sources, runs, store, self.toolchain) if sources else []

    def prepare(self, operators: Sequence[str], store: ArtifactStore) -> None:
        """Loads the library of operators that pack parameters."""
        if not PACKING.isdisjoint(operators):
            packing.load_digest(store)

    def describe_launchers(self, launchers: Sequence[Callable[..., None]]) -> str:
        """JSON about what ``link`` returned: libraries, functions, and what they were built for."""
        return building.describe_runs(launchers, self._target)

    def load_launchers(self, text: str, store: ArtifactStore) -> list[Callable[..., None]] | None:
        """The launchers of runs from libraries in ``store``; needs no compiler. A library that an
        older version of the same compiler built is used.
        """
        keep_freed_memory()
        return building.reload_runs(text, store, self._target)

    @property
    def _target(self) -> tuple[str, ...]:
        return target() if self._given is None else self._given.identity()


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    store: ArtifactStore | None = None,
    options: Options | None = None,
    on_artifact: Callable[[str, str], None] | None = None,
) -> HostProgram:
    """``loopir.compile_graph`` with this generator for the CPU: an ATen graph (C2) or prim graph
    (C3) to a callable.

    ``store``, ``options`` and ``on_artifact`` as there. Raises BuildError with the compiler's
    output.
    """
    codegens = {"cpu": CppCodeGenerator()}
    return loopir.compile_graph(
        gm, example_inputs, codegens=codegens, store=store, options=options, on_artifact=on_artifact
    )
