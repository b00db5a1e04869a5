"""What a code generator is (contract G)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loopir.kernel import Kernel
from loopir.store import ArtifactStore


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Source text of one kernel with what its launch needs; ``metadata`` belongs to the generator."""

    kernel: Kernel
    text: str
    metadata: tuple[tuple[str, object], ...] = field(default=())


class CodeGenerator(Protocol):
    """Turns kernels into callables for one device type."""

    device: str

    def generate(self, kernel: Kernel) -> KernelSource:
        """Returns the source of ``kernel``; pure and deterministic."""
        ...

    def build(self, sources: Sequence[KernelSource], store: ArtifactStore) -> list[Callable[..., None]]:
        """Compiles all kernels of a program at once (one translation unit where the target has them); one callable per source,
        called with the buffers' tensors in ``kernel.buffers`` order, then an int per ``kernel.sizes``. Raises BuildError."""
        ...
