"""How often each thing happened since the last ``reset()``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import aotgrad
import bytecode_dynamo
import inductor_triton
import loopir

_CAUSE = "failed_graphs: "


class Counters(Mapping[str, int]):
    """A read-only mapping of the counts of all layers; ``fallbacks`` is the sum over all layers.

    ``failed_graphs`` counts compiled graphs that raised where eager mode does not, and have run
    operator by operator since; ``failed_graphs: <exception>`` counts those of one cause.
    ``cheaper_graphs`` counts what was compiled after ``compile_seconds`` were spent.
    """

    def __init__(self) -> None:
        self.compiler: Counter[str] = Counter()
        capture, compiler = bytecode_dynamo.counters, self.compiler
        self._layers: dict[str, tuple[Mapping[str, int], ...]] = {
            "graphs": (capture,),
            "kept_frames": (capture,),
            "graph_breaks": (capture,),
            "recompiles": (capture,),
            "generated_kernels": (compiler,),
            "extern_calls": (compiler,),
            "cheaper_graphs": (compiler,),
            "fallbacks": (capture, aotgrad.counters, compiler),
            "failed_graphs": (capture,),
            "cache_hits": (compiler,),
            "cache_misses": (compiler,),
        }

    def __getitem__(self, name: str) -> int:
        if name == "cuda_graphs":
            return inductor_triton.counters["recorded"]
        if name.startswith(_CAUSE):
            return bytecode_dynamo.counters[name]
        return sum(layer[name] for layer in self._layers[name])

    def __iter__(self) -> Iterator[str]:
        yield from (*self._layers, "cuda_graphs")
        yield from (name for name in bytecode_dynamo.counters if name.startswith(_CAUSE))

    def __len__(self) -> int:
        return sum(1 for _ in self)

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
