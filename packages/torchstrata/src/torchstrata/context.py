"""What the stages of one captured graph share, and how its programs become callables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import inductor_triton
import loopir
import primops
from symshapes.choices import decide

from .compile_clock import CHEAPER, CompileClock
from .config import Config
from .counters import counters
from .dump import Dump
from .generators import FOREIGN_DEADLINE, code_generators, is_own
from .tracing import current

if TYPE_CHECKING:
    import torch

    from .artifacts.recording import RecordedGraph
    from .extensions import Extensions
    from .graph_cache import GraphCacheEntry
    from .lock_file import LockedGraph
    from .tracing import GraphTrace


@dataclass(frozen=True, slots=True)
class Context:
    """What the stages of one captured graph share."""

    config: Config
    store: loopir.ArtifactStore
    codegens: dict[str, loopir.CodeGenerator]
    dump: Dump
    extensions: Extensions
    inference: bool = False
    cache_entry: GraphCacheEntry | None = None
    recorded: RecordedGraph | None = None
    trace: GraphTrace | None = None
    lock: LockedGraph | None = None
    clock: CompileClock = field(default_factory=CompileClock)
    is_cheaper: bool = False

    @property
    def is_cached(self) -> bool:
        """Whether programs may come from the cache: nothing is checked or dumped, and everything
        that the stages run has a key.
        """
        is_plain = not (self.config.checks or self.profiles or self.dump.is_wanted)
        return is_plain and None not in self.extensions.keys

    def within_budget(self) -> Context:
        """This context, or a cheaper one once ``compile_seconds`` are spent; what it compiles is
        in no graph's entry.
        """
        if not decide("cheaper schedules", "program", self.clock.is_over()):
            return self
        self.clock.note_cheaper()
        return replace(self, config=self.config.with_options(CHEAPER), is_cheaper=True)

    @property
    def has_listener(self) -> bool:
        """Whether somebody wants the texts of stages."""
        return self.dump.is_wanted or self.trace is not None

    @property
    def profiles(self) -> bool:
        """Whether each kernel is timed, which keeps launches apart."""
        return self.trace is not None and self.trace.profile is not None

    def write(self, name: str, text: str) -> None:
        """Keeps the text of a stage above loop IR."""
        self.dump.write(name, text)
        if self.trace is not None:
            self.trace.write(name, text)

    @property
    def deadline(self) -> float | None:
        """The seconds that a call of a code generator may take; None for the stack's own."""
        return None if all(map(is_own, self.codegens.values())) else FOREIGN_DEADLINE

    @property
    def pipeline(self) -> loopir.Pipeline:
        """The settings of the stages below autograd."""
        config = self.config
        options = loopir.Options(
            inference=self.inference,
            fuse=config.fusion,
            inline=config.inlining,
            split_reductions=config.split_reductions,
            reuse=config.memory_reuse,
            patterns=config.patterns,
            layouts=config.layouts,
            templates=config.templates,
            reorder=config.loop_order,
            vectorise=config.vectorisation,
            # not measured on GPUs yet, where a cut may cost a product its prologue
            blocks=config.blocks and "cuda" not in self.codegens,
            check=config.checks,
            deadline=self.deadline,
            join_launches=not self.profiles,
        )

        passes = self.extensions.passes
        return loopir.Pipeline(self.codegens, self.store, options, self.decompose, passes)

    def decompose(
        self, graph: torch.fx.GraphModule, table: primops.DecompositionTable | None = None
    ) -> torch.fx.GraphModule:
        """The prim graph of a functional graph, by the caller's rules unless given others."""
        return primops.decompose(
            graph,
            table or self.extensions.table,
            numerics=self.config.numerics,
            fallback_random=self.config.fallback_random,
        )


def new_context(
    config: Config,
    devices: Collection[str],
    extensions: Extensions,
    recorded: RecordedGraph | None = None,
    clock: CompileClock | None = None,
) -> Context:
    """The context of one captured graph whose values are on these device types."""
    generators = code_generators(config, devices, dict(extensions.codegens))
    store, dump = open_store(config.cache_dir), Dump.for_graph(config.dump)
    recording = current()
    trace = None if recording is None else recording.graph()
    clock = clock or CompileClock(config.compile_seconds)
    return Context(
        config, store, generators, dump, extensions, recorded=recorded, trace=trace, clock=clock
    )


def revive(
    ctx: Context, stored: loopir.StoredProgram, meta: Mapping[str, Any]
) -> Callable[..., Sequence[object]]:
    """The callable of a cached program."""
    with counters.watching(ctx.store):
        host = stored.build(ctx.codegens, ctx.store, ctx.deadline)
    return finish(ctx, host, meta)


def finish(
    ctx: Context, form: loopir.HostProgram, meta: Mapping[str, Any]
) -> Callable[..., Sequence[object]]:
    """The callable of a built program; ``meta`` is that of its functional graph."""
    counters.compiler.update(generated_kernels=form.kernel_count, extern_calls=form.extern_count)
    on_cuda = any(device.type == "cuda" for device in form.facts.devices)
    replays = ctx.config.cuda_graphs and on_cuda and not ctx.profiles
    if not replays or not is_own(ctx.codegens["cuda"]):
        return form
    graph_meta = {} if form.facts.numbers else meta
    limits = ctx.config.cuda_graph_copies, graph_meta, ctx.config.cuda_graph_memory
    form = inductor_triton.accelerate(form, *limits)
    if form.facts.numbers or not isinstance(form.function, inductor_triton.Replay):
        return form
    return form.function


def open_store(directory: str | None) -> loopir.ArtifactStore:
    return loopir.ArtifactStore(None if directory is None else Path(directory), or_temporary=True)
