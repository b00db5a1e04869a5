"""``compile()``: one call for the whole stack."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import bytecode_dynamo
import torch

from torchstrata.config import Config, config
from torchstrata.counters import counters
from torchstrata.errors import CompileError, FallbackWarning, UsageError
from torchstrata.module import CompiledModule
from torchstrata.stages import aot_eager, capture, compile_captured

Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]

MODES: dict[str, dict[str, object]] = {
    "default": {},
    "reduce-overhead": {"cuda_graph_copies": 8 << 30},
    "max-autotune": {"tune": True},
    "max-autotune-no-cudagraphs": {"cuda_graphs": False, "tune": True},
}
"""Options that a mode sets. On the CPU all modes compile alike; the names are accepted so that programs need no change."""


_OPTIONS = {"triton.cudagraphs": "cuda_graphs", "max_autotune": "tune", "freezing": "freeze"}
"""Names of torch.compile for our options."""


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compiles a function or module; without ``model`` it returns a decorator.

    ``fullgraph`` makes a graph break an error that shows the user's line. ``dynamic``: None specialises sizes first and makes
    those that change symbolic, True makes them symbolic at once, False never. ``backend`` is a graph backend (contract B), the
    name of one, or None for the whole stack, which ``"inductor"`` is here, too. ``mode`` is one of MODES; ``options``
    overrides fields of ``torchstrata.config``.
    A compiled module shares the original's state; what is returned has ``__wrapped__``.

    Raises UsageError for arguments that can't be, CompileError when a layer fails and either ``fullgraph`` or
    ``config.fallback == "error"`` holds; otherwise such a graph runs eagerly with a FallbackWarning.
    """
    if model is None:
        return functools.partial(compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options)
    if not callable(model):
        raise UsageError(f"compile() takes a function or a torch.nn.Module, not {type(model).__name__}")
    if mode is not None and mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}; the modes are {', '.join(MODES)}")
    named = {_OPTIONS.get(name, name): value for name, value in (options or {}).items()}
    settings = config.with_options({**MODES[mode or "default"], **named})
    graph_backend = _graph_backend(backend, settings, fullgraph, options)
    optimize = capture(graph_backend, fullgraph=fullgraph, dynamic=dynamic, on_error=settings.fallback)
    if isinstance(model, torch.nn.Module):
        return CompiledModule.wrap(model, optimize)
    compiled = optimize(model)
    compiled.__wrapped__ = model
    return compiled


def compile_fx(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """The stack as a graph backend (contract B), without capture: for other front ends. Raises CompileError."""
    return compile_captured(config, graph, example_inputs)


def reset() -> None:
    """Forgets every compiled entry and counter."""
    bytecode_dynamo.reset()
    counters.clear()


def _graph_backend(backend: str | Backend | None, settings: Config, fullgraph: bool, options: object) -> str | Backend:
    if backend in (None, "torchstrata", "inductor"):
        return _stack(settings, fullgraph)
    if options:
        raise UsageError(f"options belong to the backend 'torchstrata', not to {backend!r}")
    if backend == "aot_eager":
        return aot_eager
    if isinstance(backend, str):
        try:
            return bytecode_dynamo.lookup_backend(backend)
        except bytecode_dynamo.UserError as error:
            raise UsageError(str(error)) from error
    if not callable(backend):
        raise UsageError(f"backend must be a name or a callable, not {type(backend).__name__}")
    return backend


def _stack(settings: Config, fullgraph: bool) -> Backend:
    """The graph backend that runs all stages, with the fallback that ``settings`` ask for."""

    def torchstrata(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        try:
            return compile_captured(settings, graph, example_inputs)
        except CompileError as error:
            takes_floats = any(isinstance(n.meta.get("val"), torch.SymFloat) for n in graph.graph.find_nodes(op="placeholder"))
            if fullgraph or settings.fallback == "error" or takes_floats:
                raise  # captured again where the trouble may be with floats: a graph per value
            counters.compiler["fallbacks"] += 1
            warnings.warn(f"a graph runs eagerly: {error.summary}", FallbackWarning, stacklevel=2)
            return graph.forward

    return torchstrata
