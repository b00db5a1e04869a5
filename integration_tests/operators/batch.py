"""Many programs, one translation unit: a code generator that waits until all are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import inductor_cpp
from loopir import ArtifactStore, KernelSource, Run


class Batch(inductor_cpp.CppCodeGenerator):
    """Programs compiled with it can be called after ``flush``, which builds the kernels of all of
    them at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[KernelSource] = []
        self.runs: list[Run] = []
        self.built: list[Callable[..., None]] = []

    def link(
        self, sources: Sequence[KernelSource], runs: Sequence[Run], store: ArtifactStore
    ) -> list[Callable[..., None]]:
        """Remembers the runs; the callables find what ``flush`` built."""
        first, place = len(self.sources), len(self.runs)
        self.sources += sources
        self.runs += [
            replace(run, calls=tuple(replace(c, source=c.source + first) for c in run.calls))
            for run in runs
        ]
        return [lambda *args, i=i: self.built[i](*args) for i in range(place, len(self.runs))]

    def flush(self, store: ArtifactStore) -> None:
        """Builds what is waiting. Raises BuildError."""
        self.built = super().link(self.sources, self.runs, store)
