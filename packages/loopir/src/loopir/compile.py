"""The pipeline as a graph backend (contract B), read top to bottom: STAGES."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import primops
import primops.text
import torch
from symshapes.choices import within
from symshapes.decisions import may
from torch.utils._python_dispatch import _disable_current_modes

from loopir.cache.cache_key import devices_of
from loopir.cache.program_cache import ProgramCacheEntry
from loopir.cache.store import ArtifactStore
from loopir.cache.stored_program import StoredProgram
from loopir.host.host_builder import build_host, generate
from loopir.host.host_program import HostProgram
from loopir.host.launched import check_launches
from loopir.host.shared_device import share_devices
from loopir.ir.program import Program, check_program
from loopir.ir.program_text import format_decision, format_schedule
from loopir.ir.template import format_any

from .backend import CodeGenerator, KernelSource
from .blocks import graphs_of, outline
from .lowering import check_graph, lower
from .options import Options
from .passes import GraphPass, find_passes, keys_of
from .patterns import freeze, has_images, rewrite_patterns
from .registry import code_generators
from .schedule import schedule

fusion_log = logging.getLogger("loopir.fusion")
Decompose = Callable[[torch.fx.GraphModule], torch.fx.GraphModule]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What the stages of one graph share. ``codegens`` maps a device type to its code generator;
    ``passes`` run after the stage that makes what they take, in order.
    """

    codegens: Mapping[str, CodeGenerator]
    store: ArtifactStore
    options: Options
    decompose: Decompose = primops.decompose
    passes: tuple[GraphPass, ...] = ()


@dataclass(frozen=True, slots=True)
class GeneratedProgram:
    """A program with the source of each of its kernels."""

    program: Program
    sources: Sequence[KernelSource]


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One step.

    Attributes:
        name: the file name of its result in a dump.
        layer: the package that it belongs to, for messages.
        run: makes the next form of the graph.
        check: verifies that form.
        show: formats it.
    """

    name: str
    layer: str
    run: Callable[[Pipeline, Any], Any]
    check: Callable[[Pipeline, Any], object]
    show: Callable[[Any], str]


def _rewrite(pipeline: Pipeline, graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Equal parts are rewritten once, but the layouts of images are chosen for a whole graph."""
    codegens, options = pipeline.codegens, pipeline.options
    is_whole = has_images(graph)
    if is_whole:
        graph = rewrite_patterns(graph, codegens, options)
    is_open = all(each.level != "prims" for each in pipeline.passes)
    if options.blocks and is_open and may("pattern", "outline"):
        graph = outline(graph)
    for number, part in enumerate(() if is_whole else graphs_of(graph)):
        with within(f"part{number}" if number else ""):
            rewrite_patterns(part, codegens, options)
    return graph


def _decompose(pipeline: Pipeline, graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    return pipeline.decompose(graph)


def _schedule(pipeline: Pipeline, graph: torch.fx.GraphModule) -> Program:
    options = pipeline.options
    program = schedule(lower(graph, options), options, pipeline.codegens)
    for decision in program.decisions if fusion_log.isEnabledFor(logging.DEBUG) else ():
        fusion_log.debug("%s", format_decision(decision), extra={"fields": asdict(decision)})
    return program


def _generate(pipeline: Pipeline, program: Program) -> GeneratedProgram:
    sources = generate(program, pipeline.codegens, pipeline.options.deadline)
    check_launches(program, sources, pipeline.codegens)  # it takes less than a millisecond
    return GeneratedProgram(program, sources)


def _build(pipeline: Pipeline, generated: GeneratedProgram) -> HostProgram:
    program, sources, options = generated.program, generated.sources, pipeline.options
    return build_host(
        program,
        sources,
        pipeline.codegens,
        pipeline.store,
        options.deadline,
        join=options.join_launches,
    )


def _build_stored(pipeline: Pipeline, stored: StoredProgram) -> HostProgram:
    return stored.build(pipeline.codegens, pipeline.store, pipeline.options.deadline)


def _unchecked(pipeline: Pipeline, form: object) -> None:
    """Source text only has to compile; rewritten graphs are checked once decomposed."""


_show_graph = partial(primops.text.format_graph, strict=False)


def _show_loops(program: Program) -> str:
    return "\n\n".join([*map(format_any, program.kernels), format_schedule(program)])


def _show_sources(generated: GeneratedProgram) -> str:
    return "\n\n".join(source.text for source in generated.sources)


STAGES: tuple[PipelineStage, ...] = (
    PipelineStage("25-patterns.py", "loopir", _rewrite, _unchecked, _show_graph),
    PipelineStage(
        "30-prims.py", "primops", _decompose, lambda _, graph: primops.check_prims(graph),
        _show_graph,
    ),
    PipelineStage(
        "40-loops.txt", "loopir", _schedule, lambda _, program: check_program(program), _show_loops
    ),
    PipelineStage("50-kernels.txt", "code generator", _generate, _unchecked, _show_sources),
    PipelineStage("60-host.py", "code generator", _build, _unchecked, lambda host: host.source),
)  # fmt: skip


_TAKEN_BY = {"40-loops.txt": "prims", "50-kernels.txt": "loops"}


def _with_passes(
    stages: Sequence[PipelineStage], passes: Sequence[GraphPass]
) -> Iterator[PipelineStage]:
    """The stages, each after the passes on what it takes."""
    for stage in stages:
        for each in passes:
            if each.level == _TAKEN_BY.get(stage.name):
                yield _pass_stage(each)
        yield stage


def _pass_stage(each: GraphPass) -> PipelineStage:
    name, show = {
        "prims": (f"35-{each.name}.py", _show_graph),
        "loops": (f"45-{each.name}.txt", _show_loops),
    }[each.level]
    return PipelineStage(name, str(each), lambda _, form: each(form), _unchecked, show)


def run_stages(
    pipeline: Pipeline,
    graph: torch.fx.GraphModule,
    *,
    stages: Sequence[PipelineStage] = STAGES,
    entry: ProgramCacheEntry | None = None,
    around: Callable[[PipelineStage], AbstractContextManager[object]] = nullcontext,
    watch: Callable[[PipelineStage, Any], None] | None = None,
    recompute: bool = False,
) -> HostProgram:
    """Runs a graph through ``stages``.

    Args:
        pipeline: what the stages share. Each result is checked with ``options.check``.
        graph: a functional graph (C2), or the form that the first stage takes.
        stages: the steps; the last ones are to generate and to build.
        entry: of the cache; a hit is only built, a miss is added.
        around: a context that each stage runs in.
        watch: receives each stage with its result.
        recompute: run all stages also if the entry has the program.
    """
    form: Any = graph
    steps = _with_passes(stages, pipeline.passes)
    stored = None if entry is None or recompute else entry.get()
    if stored is not None:
        form, steps = stored, iter([replace(stages[-1], run=_build_stored)])
    for stage in steps:
        # a default device, or the fake mode of a caller, is not for what a stage computes
        with around(stage), _disable_current_modes(), torch._C.DisableTorchFunction():
            form = stage.run(pipeline, form)
            if pipeline.options.check:
                stage.check(pipeline, form)
        if watch is not None:
            watch(stage, form)
    if entry is not None and stored is None:
        entry.put(form, pipeline.codegens)
    return form  # type: ignore[return-value]


def is_prim_graph(gm: torch.fx.GraphModule) -> bool:
    """Whether decomposition has run: the output says what the caller must receive (C3.6), no input
    is a fake tensor (C3.4).
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    is_aten = any(isinstance(node.meta.get("val"), torch.Tensor) for node in inputs)
    return not is_aten and "val" in gm.graph.find_nodes(op="output")[-1].meta


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    codegens: Mapping[str, CodeGenerator | str] | None = None,
    passes: Sequence[GraphPass | str] = (),
    store: ArtifactStore | None = None,
    options: Options | None = None,
    on_artifact: Callable[[str, str], None] | None = None,
) -> HostProgram:
    """Compiles a functional ATen graph (C2) or a prim graph (C3). ``codegens`` maps a device type
    to its code generator or the name of an installed one; others are found in the registry.
    ``passes`` are run in order, see ``GraphPass``.

    A graph that ``store`` knows is only built. ``on_artifact(name, text)`` receives the result of
    each stage, and has all stages run.
    """
    options, store, stages = options or Options(), store or ArtifactStore(), STAGES
    chosen = find_passes(passes)
    is_cached = not (on_artifact or options.check or options.freeze) and None not in keys_of(chosen)
    if is_prim_graph(gm):
        check_graph(gm)
        stages = STAGES[2:]
    elif options.freeze:
        gm, options = freeze(gm, example_inputs), replace(options, inference=True)
    generators = share_devices(code_generators(devices_of(gm), codegens), {})
    entry = (
        ProgramCacheEntry.of(gm, generators, store, options, keys_of(chosen)) if is_cached else None
    )
    pipeline = Pipeline(generators, store, options, passes=chosen)
    watch = None
    if on_artifact is not None:
        watch = lambda stage, form: on_artifact(stage.name, stage.show(form))  # noqa: E731
    return run_stages(pipeline, gm, stages=stages, entry=entry, watch=watch)
