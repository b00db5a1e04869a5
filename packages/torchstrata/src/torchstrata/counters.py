"""How often each thing happened since the last ``reset()``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import aotgrad
import bytecode_dynamo
import inductor_triton
import loopir

_CAPTURE = ("graphs", "graph_breaks", "recompiles", "failed_graphs")
_COMPILE = ("generated_kernels", "extern_calls", "cache_hits", "cache_misses")
_NAMES = (
    "graphs",
    "graph_breaks",
    "recompiles",
    "generated_kernels",
    "extern_calls",
    "fallbacks",
    "failed_graphs",
    "cache_hits",
    "cache_misses",
    "cuda_graphs",
)


class Counters(Mapping[str, int]):
    """A read-only mapping of the counts of all layers; ``fallbacks`` is the sum over all layers.

    ``failed_graphs`` are compiled graphs that raised where eager mode does not, and run operator by
    operator since; ``failed_graphs: <exception>`` has those of each cause.
    """

    def __init__(self) -> None:
        self.compiler: Counter[str] = Counter()

    def __getitem__(self, name: str) -> int:
        if name in _CAPTURE or name.startswith("failed_graphs: "):
            return bytecode_dynamo.counters[name]
        if name in _COMPILE:
            return self.compiler[name]
        if name == "cuda_graphs":
            return inductor_triton.counters["recorded"]
        if name == "fallbacks":
            return bytecode_dynamo.counters[name] + aotgrad.counters[name] + self.compiler[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(
            (
                *_NAMES,
                *(name for name in bytecode_dynamo.counters if name.startswith("failed_graphs: ")),
            )
        )

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return repr(dict(self))

    @contextmanager
    def watching(self, store: loopir.ArtifactStore) -> Iterator[None]:
        """Counts the hits and misses of a store within a ``with`` block."""
        hits, misses = store.hits, store.misses
        yield
        self.compiler.update(cache_hits=store.hits - hits, cache_misses=store.misses - misses)

    def clear(self) -> None:
        self.compiler.clear()
        inductor_triton.counters.clear()
        aotgrad.counters.clear()
        bytecode_dynamo.counters.clear()


counters = Counters()
