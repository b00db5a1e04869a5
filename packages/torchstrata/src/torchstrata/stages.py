"""The pipeline below capture, read top to bottom.

A captured graph is differentiated into functional graphs (``aotgrad``); each of these, forward and
backward, runs through ``loopir.STAGES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any

import aotgrad
import bytecode_dynamo
import loopir
import torch
from aotgrad import aot_backend
from loopir import ProgramCacheEntry
from symshapes import FakeTensorMode, check, deferred, unlocked
from symshapes.choices import Choices, using
from torch.utils import _pytree as pytree

from .artifacts.recording import RecordedGraph
from .bisect import active
from .compile_clock import CompileClock
from .config import Config, config
from .context import Context, finish, new_context, revive
from .counters import counters
from .errors import CompileError, UsageError
from .extensions import Extensions
from .generators import own_code_generators
from .graph_cache import GraphCacheEntry
from .host_calls import compile_pieces, has_host_calls, makes_leaves
from .lock_file import describe, describe_graph, locked_graph
from .tracing import current

MACHINE_ERRORS = (loopir.SettingError,)
"""Wrong settings: always raised, never a fallback."""


@cache
def prepare() -> None:
    """Loads what the first call of any compiled program would wait for: the code generator for the
    CPU, and what torch imports at the first call on a fake tensor.
    """
    own_code_generators(config, ("cpu",))
    with FakeTensorMode():
        torch.empty(1).permute(0)


@deferred()
def compile_functional(
    ctx: Context, direction: str, graph: torch.fx.GraphModule
) -> Callable[..., Sequence[object]]:
    """Runs a functional graph (C2) through ``loopir.STAGES``, with the choices of the lock file.

    Raises CompileError, which names the layer that failed.
    """
    if ctx.lock is None:
        return _compile_functional(ctx, direction, graph, None)
    choices = ctx.lock.program(direction, describe_graph(graph))
    with using(choices):
        return _compile_functional(ctx, direction, graph, choices)


def _compile_functional(
    ctx: Context, direction: str, graph: torch.fx.GraphModule, choices: Choices | None
) -> Callable[..., Sequence[object]]:
    ctx = ctx.within_budget()
    if ctx.config.checks:
        aotgrad.check_functional(graph)
    entry = plain = program_cache_entry(ctx, graph)
    is_recorded = choices is None or choices.known is not None
    if plain is not None and choices is not None:
        entry = _keyed(plain, choices.known)
    if choices is not None and is_recorded and entry is not None and entry.get() is not None:
        choices.made.update(choices.known or {})
        choices = None
    if ctx.trace is not None and ctx.is_cached:
        is_found = entry is not None and entry.get() is not None
        key = None if entry is None else entry.key
        ctx.trace.note_lookup("program", direction, ctx.store, key, is_found)
    with counters.watching(ctx.store):
        host = loopir.run_stages(
            ctx.pipeline,
            graph,
            entry=entry,
            around=partial(_around, ctx, direction, graph),
            watch=partial(_watch, ctx, direction) if ctx.has_listener else None,
            recompute=ctx.trace is not None or not is_recorded,
        )
        if choices is not None:
            entry = _recorded(ctx, choices, entry, plain, host)
        if ctx.cache_entry is not None:
            ctx.cache_entry.record(direction, None if ctx.is_cheaper else entry, graph.meta)
        if ctx.recorded is not None:
            ctx.recorded.record(direction, host, ctx.codegens, graph, ctx.store)
    if ctx.profiles and ctx.trace is not None:
        host = ctx.trace.profiled(direction, host)
    return finish(ctx, host, graph.meta)


def _recorded(
    ctx: Context,
    choices: Choices,
    entry: ProgramCacheEntry | None,
    plain: ProgramCacheEntry | None,
    host: loopir.HostProgram,
) -> ProgramCacheEntry | None:
    """Saves the choices about a program in the lock file; the entry under a key with them."""
    assert ctx.lock is not None
    choices.finish()
    ctx.lock.save()
    if plain is None or choices.made == choices.known:
        return entry
    entry = _keyed(plain, choices.made)
    entry.put(host, ctx.codegens)
    return entry


def _keyed(entry: ProgramCacheEntry, rules: object) -> ProgramCacheEntry:
    """The entry of a program that is compiled with these choices."""
    key = entry.store.key("torchstrata.lock", entry.key, choices=describe(rules))
    return replace(entry, key=key)


@contextmanager
def _around(
    ctx: Context, direction: str, graph: torch.fx.GraphModule, stage: loopir.PipelineStage
) -> Iterator[None]:
    ctx.clock.doing = f"{direction}, {stage.name.partition('-')[2].partition('.')[0]}"
    timed = nullcontext() if ctx.trace is None else ctx.trace.stage(direction, stage, ctx.store)
    with stage_errors(graph, stage), timed:
        yield


def _watch(ctx: Context, direction: str, stage: loopir.PipelineStage, form: Any) -> None:
    if ctx.dump.is_wanted:
        ctx.dump.write(f"{direction}-{stage.name}", stage.show(form))
    if ctx.trace is not None:
        ctx.trace.note_stage(direction, stage, form)


@contextmanager
def stage_errors(graph: torch.fx.GraphModule, stage: loopir.PipelineStage) -> Iterator[None]:
    """Names the layer that failed. Stops early if the thread was asked to."""
    check()
    try:
        # other threads trace while this one waits for the C++ compiler or measures kernels
        with unlocked() if stage is loopir.STAGES[-1] else nullcontext():
            yield
    except MACHINE_ERRORS:
        raise
    except Exception as error:
        where = "" if isinstance(error, loopir.ToolError) else user_lines(graph)
        raise CompileError(stage.layer, where, error) from error


def program_cache_entry(ctx: Context, graph: torch.fx.GraphModule) -> ProgramCacheEntry | None:
    """The cache entry for the stages before the build; None if they are dumped or checked, or run
    a pass or decompositions without a key.
    """
    if not ctx.is_cached:
        return None
    settings = (
        ctx.config.numerics,
        ctx.config.fallback_random,
        ctx.pipeline.options,
        ctx.extensions.keys,
    )
    return ProgramCacheEntry.of(graph, ctx.codegens, ctx.store, *settings)


def compile_captured(
    config: Config,
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    extensions: Extensions,
    recorded: RecordedGraph | None = None,
    clock: CompileClock | None = None,
    note: Callable[[GraphCacheEntry], None] | None = None,
) -> Callable[..., Sequence[object]]:
    """Compiles a captured graph (C1, or any FX graph of torch calls); host calls (C1.9) cut it into
    pieces. ``extensions``: what the caller chose. ``recorded`` keeps what is made of a graph for a
    file; one that is cut, or computes nothing, leaves it without calls. ``clock`` is that of the
    callable which the graph belongs to. ``note`` is called with the cache entry of a graph in one
    piece.

    Raises CompileError.
    """
    again = partial(compile_captured, config, extensions=extensions, clock=clock)
    pieces = partial(compile_pieces, graph, example_inputs, again)
    if has_host_calls(graph):
        return pieces()
    if _is_without_data(graph):
        return graph
    if active.current() is not None:
        config = config.with_options({"verify": "contracts"})
    ctx = new_context(config, loopir.devices_of(graph), extensions, recorded, clock)
    if ctx.dump.is_wanted:
        ctx.dump.write("10-captured.py", bytecode_dynamo.format_captured(graph, strict=False))
    compile = partial(_compile_whole, ctx, graph, example_inputs, pieces, note)
    return active.compared(ctx, graph, compile)


def _compile_whole(
    ctx: Context,
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    pieces: Callable[[], Callable[..., Sequence[object]]],
    note: Callable[[GraphCacheEntry], None] | None,
) -> Callable[..., Sequence[object]]:
    """Compiles a graph without host calls; in ``pieces`` where autograd needs that."""
    config, recorded = ctx.config, ctx.recorded
    where = user_lines(graph)
    freezes = config.freeze and not torch.is_grad_enabled()
    if freezes:
        loopir.freeze(graph, example_inputs)
    keys = " ".join(filter(None, ctx.extensions.keys))
    ctx = replace(ctx, lock=locked_graph(config, graph, ctx.codegens, keys))
    if ctx.is_cached and not freezes and recorded is None:
        settings = (*config.compile_settings(), *ctx.extensions.keys)
        build = partial(revive, ctx)
        entry = GraphCacheEntry(ctx.store, settings, ctx.codegens, build, ctx.trace, ctx.lock)
        ctx = replace(ctx, cache_entry=entry)
    backend = aot_backend(**autograd_options(ctx), cache=recorded or ctx.cache_entry)
    compiling = nullcontext() if ctx.trace is None else ctx.trace.compiling(graph)
    try:
        with ctx.clock.running(where), compiling:
            compiled = backend(graph, example_inputs)
        if note is not None and ctx.cache_entry is not None:
            note(ctx.cache_entry)
        return compiled
    except Exception as error:
        cause = error.__cause__ if isinstance(error, aotgrad.CompilerError) else error
        if isinstance(cause, (CompileError, UsageError, *MACHINE_ERRORS)):
            raise cause from cause.__cause__
        if _needs_pieces(cause, graph):
            return pieces()
        raise CompileError("aotgrad", where, error) from error
    finally:
        if ctx.cache_entry is not None:
            ctx.cache_entry.close()


def autograd_options(ctx: Context) -> dict[str, Any]:
    """The arguments of ``aotgrad.aot_backend``: settings, and what compiles functional graphs."""
    config = ctx.config
    inference_ctx = replace(ctx, inference=True)
    passes = [loopir.lay_out_images] * (config.patterns and config.layouts)
    passes += [aotgrad.redraw_masks] * (not config.fallback_random)
    write_artifact = lambda name, text: ctx.write(f"20-{name}.py", text)  # noqa: E731
    return dict(
        forward_compiler=lambda functional, _: compile_functional(ctx, "forward", functional),
        backward_compiler=lambda functional, _: compile_functional(ctx, "backward", functional),
        inference_compiler=lambda functional, _: compile_functional(
            inference_ctx, "inference", functional
        ),
        passes=passes,
        partition=config.partition,
        activation_memory_budget=config.activation_memory_budget,
        on_artifact=write_artifact if ctx.has_listener else None,
        fallback_random=config.fallback_random,
        unit_gradients=config.numerics == "fast",
        wrap_backward=bytecode_dynamo.disable,
        choices=None if ctx.lock is None else partial(ctx.lock.program, "joint"),
    )


def _is_without_data(graph: torch.fx.GraphModule) -> bool:
    """Whether all tensors are on the meta device, so that there is nothing to generate: torch
    computes their sizes.
    """
    values = pytree.tree_leaves([node.meta.get("val") for node in graph.graph.nodes])
    devices = {value.device.type for value in values if isinstance(value, torch.Tensor)}
    return devices == {"meta"}


def aot_eager(
    graph: torch.fx.GraphModule, example_inputs: Sequence[object]
) -> Callable[..., Sequence[object]]:
    """Stops after autograd: functional graphs run with eager kernels."""
    if not has_host_calls(graph):
        try:
            backend = aot_backend(
                lambda functional, _: functional, wrap_backward=bytecode_dynamo.disable
            )
            return backend(graph, example_inputs)
        except aotgrad.Unsupported as error:
            if not _needs_pieces(error, graph):
                raise
    return compile_pieces(graph, example_inputs, aot_eager)


def _needs_pieces(error: BaseException | None, graph: torch.fx.GraphModule) -> bool:
    return (
        isinstance(error, aotgrad.Unsupported)
        and error.id in ("AG023", "AG025")
        and makes_leaves(graph)
    )


def user_lines(graph: torch.fx.GraphModule) -> str:
    """The first and last user line of a graph, for messages."""
    traces = [trace for node in graph.graph.nodes if (trace := node.meta.get("stack_trace"))]
    if not traces:
        return ""
    first, last = (trace.strip().splitlines() for trace in (traces[0], traces[-1]))
    return "\n".join(dict.fromkeys([*first[-2:], *last[-2:]]))


def capture(backend: Any, **options: Any) -> bytecode_dynamo.Optimizer:
    """``bytecode_dynamo.optimize``, once everything is prepared and STRATA_TRACE is read."""
    prepare()
    current()
    return bytecode_dynamo.optimize(backend, **options)
