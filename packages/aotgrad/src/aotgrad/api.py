"""Entry points: a graph backend, and wrappers for functions and modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

import torch
from symshapes.choices import Choices

from aotgrad.compiling.captured_graph import (
    captured_program,
    compilation_of,
    compile_captured,
)
from aotgrad.compiling.compilation import Compilation
from aotgrad.compiling.compile import CompileOptions
from aotgrad.compiling.compiled_cache import CacheLookup
from aotgrad.graphs.budget import check_budget, partition_within
from aotgrad.graphs.partition import PARTITIONERS, Partitioner
from aotgrad.graphs.trace import trace_program
from aotgrad.running.eager import run_eager as run_eager
from aotgrad.tracing.joint import Program

from .errors import UserError
from .function import AotFunction, AotModule

Compiler = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Sequence[Any]]]
JointPass = Callable[[torch.fx.GraphModule], torch.fx.GraphModule | None]


class BackendOptions(TypedDict, total=False):
    """Keyword options that every entry point takes.

    Attributes:
        inference_compiler: compiles graphs without backward; the forward compiler by default.
        passes: run in order on the joint graph; each edits it or returns a new one with the same
            placeholders and outputs.
        partition: ``"min_cut"`` (default), ``"default"``, or a callable that chooses what is saved
            for backward.
        activation_memory_budget: with ``"min_cut"``, the share of its saved bytes that may be kept,
            from 1 (default) to 0 (recompute all that may be): below 1, heavy ops are repeated, and
            random ones from a kept seed.
        fallback_random: keeps every random op, used or not, so that eager's random sequence is
            reproduced exactly.
        unit_gradients: whether forward may compute the gradients of a loss, which backward then
            multiplies by its tangent: that rounds once more than eager.
        wrap_backward: wraps backward functions. Autograd calls them from the caller's code, so a
            caller that watches what runs there can exclude them.
        cache: looks up compiled captured graphs (``compiling.compiled_cache``).
        choices: returns where the choices about a joint graph, given as text, are recorded.
        on_artifact: called with (name, text) for the joint graph, the partition, the split graphs
            and the runtime code.
    """

    inference_compiler: Compiler | None
    passes: Sequence[JointPass]
    partition: str | Partitioner
    activation_memory_budget: float
    fallback_random: bool
    unit_gradients: bool
    wrap_backward: Callable[[Callable[..., Any]], Callable[..., Any]] | None
    cache: CacheLookup | None
    choices: Callable[[str], Choices | None] | None
    on_artifact: Callable[[str, str], None] | None


def aot_backend(
    forward_compiler: Compiler,
    backward_compiler: Compiler | None = None,
    **options: Unpack[BackendOptions],
) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A graph backend (contract B) that hands functional ATen graphs (contract C2) to compilers.

    Args:
        forward_compiler: compiles forward graphs; ``compiler(gm, example_inputs) -> callable``.
        backward_compiler: compiles backward graphs; ``forward_compiler`` by default.
        **options: see ``BackendOptions``.

    The backend raises Unsupported for programs that must stay eager, CompilerError when a compiler
    misbehaves, and what eager raises for programs that are wrong.
    """
    resolved = _options(forward_compiler, backward_compiler, **options)

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_captured(gm, example_inputs, resolved)

    backend.host_effects = False  # type: ignore[attr-defined]  # calls are traced: what they do beside computing is not repeated
    return backend


def captured_compilation(
    gm: torch.fx.GraphModule,
    forward_compiler: Compiler,
    backward_compiler: Compiler | None = None,
    **options: Unpack[BackendOptions],
) -> Compilation:
    """What ``aot_backend`` makes of a captured graph (C1), before it compiles; for
    ``load_compiled``.
    """
    return compilation_of(gm, _options(forward_compiler, backward_compiler, **options))


def aot_function(
    f: Callable[..., Any],
    *,
    forward_compiler: Compiler,
    backward_compiler: Compiler | None = None,
    **options: Unpack[BackendOptions],
) -> AotFunction:
    """``f`` compiled for each kind of arguments that it is called with (sizes are static).

    ``f`` takes and returns pytrees of tensors; it must be a function of its arguments only.
    Arguments as in ``aot_backend``.
    """
    return AotFunction(f, _options(forward_compiler, backward_compiler, **options))


def aot_module(
    module: torch.nn.Module,
    *,
    forward_compiler: Compiler,
    backward_compiler: Compiler | None = None,
    **options: Unpack[BackendOptions],
) -> AotModule:
    """``module`` with its forward compiled; parameters and buffers are shared with it. Arguments as
    in ``aot_backend``.
    """
    return AotModule(module, _options(forward_compiler, backward_compiler, **options))


def trace_functional(program: Callable[..., Any], inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """The functional ATen graph (C2) of a function or GraphModule, without autograd, cleaned.

    Args:
        program: called with the inputs; its outputs are the graph's first outputs, flattened.
        inputs: tensors (real or fake), SymInts or numbers.

    Inputs that the program writes to have their new values as further outputs, in input order.
    """
    graph_module = program if isinstance(program, torch.fx.GraphModule) else None
    run: Program = (
        captured_program(graph_module)
        if graph_module is not None
        else lambda values, *_: program(*values)
    )
    return trace_program(run, inputs)


def _options(
    forward: Compiler, backward: Compiler | None, **options: Unpack[BackendOptions]
) -> CompileOptions:
    budget = check_budget(options.get("activation_memory_budget", 1.0))
    return CompileOptions(
        forward,
        backward or forward,
        options.get("inference_compiler") or forward,
        tuple(options.get("passes", ())),
        _partitioner(options.get("partition", "min_cut"), budget),
        fallback_random=options.get("fallback_random", False),
        on_artifact=options.get("on_artifact"),
        repeats_random=budget < 1,
        unit_gradients=options.get("unit_gradients", False),
        wrap_backward=options.get("wrap_backward"),
        cache=options.get("cache"),
        choices=options.get("choices"),
    )


def _partitioner(partition: str | Partitioner, budget: float) -> Partitioner:
    if budget < 1:
        if partition != "min_cut":
            raise UserError(
                f"activation_memory_budget {budget:g} needs partition 'min_cut', not {partition!r}"
            )
        return partial(partition_within, budget=budget)
    if callable(partition):
        return partition
    if partition not in PARTITIONERS:
        raise UserError(
            f"unknown partition {partition!r}; choose one of {sorted(PARTITIONERS)} or pass a "
            f"callable"
        )
    return PARTITIONERS[partition]
