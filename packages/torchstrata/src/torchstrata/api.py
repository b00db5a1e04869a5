"""``compile()``: one call for the whole stack."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import bytecode_dynamo
import loopir
import torch
from loopir import CodeGenerator, GraphPass
from symshapes import deferred
from symshapes.suggestion import did_you_mean

from . import lock_file
from .artifacts.saving import Precompiled, precompile
from .backends import DEBUGGING, WHOLE_STACK, Backend, find_backend, get_default_backend
from .bisect import active
from .compile_clock import CompileClock
from .config import Config, config
from .counters import counters
from .errors import CompileError, FallbackWarning, UsageError
from .extensions import Extensions, Tables, find_extensions
from .generators import own_generators
from .graph_cache import GraphCacheEntry
from .kept_frames import KeptFrame, frame_slot
from .stages import capture, compile_captured

MODES: dict[str, dict[str, object]] = {
    "default": {},
    "reduce-overhead": {"cuda_graph_copies": 8 << 30},
    "max-autotune": {"tune": True},
    "max-autotune-no-cudagraphs": {"cuda_graphs": False, "tune": True},
}
"""The options of each mode. On the CPU all modes compile alike."""


_OPTIONS = {
    "triton.cudagraphs": "cuda_graphs",
    "max_autotune": "tune",
    "freezing": "freeze",
    "layout_optimization": "layouts",
}
"""torch.compile's names for our options."""


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    nopython: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    codegens: Mapping[str, CodeGenerator | str] | None = None,
    passes: Sequence[GraphPass | str] = (),
    decompositions: Tables | None = None,
    disable: bool = False,
) -> Any:
    """Compiles a function, a module, or a class whose instances are called; without ``model``, a
    decorator.

    ``fullgraph`` makes a graph break an error that shows the user's line; ``nopython`` is another
    name for it. ``dynamic``: None specialises sizes first and makes those that change symbolic,
    True makes them symbolic at once, False never. ``backend`` is a graph backend (contract B), the
    name of one (``list_backends``), or None for the default one
    (``torchstrata.compiler.set_default_backend``), which is the whole stack; ``"inductor"`` means
    the same. ``mode`` is one of MODES; ``options`` overrides fields of ``torchstrata.config``.
    Another backend gets both as keyword arguments; "eager", "aot_eager" and "print" ignore them,
    but for ``fallback``, and log so. ``codegens`` maps a device type to a code generator
    (contract G), ``passes`` run on prim graphs or loop programs (``loopir.GraphPass``), and the
    rules of ``decompositions`` win over ``primops.DEFAULT``'s; a name stands for what an installed
    package offers. ``disable`` returns ``model`` as it is. A compiled module runs the original and
    shares its state; what is returned has ``__wrapped__``.

    Raises UsageError for invalid arguments, CompileError when a layer fails and either
    ``fullgraph`` or ``config.fallback == "error"`` holds; otherwise such a graph runs eagerly with
    a FallbackWarning.
    """
    _check_flags(fullgraph=fullgraph, nopython=nopython, dynamic=dynamic, disable=disable)
    whole = fullgraph or nopython
    extensions = find_extensions(codegens, passes, decompositions)
    chosen = get_default_backend() if backend is None else backend
    is_ours = isinstance(chosen, str) and chosen in (*WHOLE_STACK, *DEBUGGING)
    settings = _settings(mode, options) if is_ours else config.with_options(None)
    if settings.lock is not None:
        lock_file.read(lock_file.path_of(settings.lock))  # a damaged one is told here
    graph_backend: Backend = Stack(settings, whole, extensions)
    if not (is_ours and chosen in WHOLE_STACK):
        extensions.refuse_for(chosen)
        graph_backend = find_backend(chosen, mode, options)
    optimize = functools.partial(
        capture, graph_backend, fullgraph=whole, dynamic=dynamic, on_error=settings.fallback
    )
    apply = functools.partial(_compiled, None if disable else optimize)
    return apply if model is None else apply(model)


def _compiled(optimize: Callable[[], Callable[[Any], Any]] | None, model: Any) -> Any:
    """The compiled model; the model itself without ``optimize``."""
    if not callable(model):
        raise UsageError(
            f"compile() takes a function, a torch.nn.Module or a class, not {type(model).__name__}"
        )
    if optimize is None:
        return model
    searched = active.current()
    try:
        compiled = optimize()(model)
    except bytecode_dynamo.UserError as error:
        raise UsageError(str(error)) from error
    return compiled if searched is None else searched.observed(compiled)


def compile_fx(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    codegens: Mapping[str, CodeGenerator | str] | None = None,
    passes: Sequence[GraphPass | str] = (),
    decompositions: Tables | None = None,
) -> Callable[..., Sequence[Any]]:
    """The stack as a graph backend (contract B), without capture: for other front ends.

    ``example_inputs`` has a tensor or number for each placeholder, in order; ``mode``,
    ``options`` and what follows as ``compile`` takes them. Raises UsageError for others,
    CompileError when a layer fails.
    """
    if not isinstance(graph, torch.fx.GraphModule):
        raise UsageError(
            f"compile_fx() takes a torch.fx.GraphModule, not {type(graph).__name__}; compile() "
            f"takes functions"
        )
    _check_examples(graph, example_inputs)
    settings, extensions = (
        _settings(mode, options),
        find_extensions(codegens, passes, decompositions),
    )
    with deferred():
        return compile_captured(settings, graph, example_inputs, extensions)


def _check_examples(graph: torch.fx.GraphModule, example_inputs: object) -> None:
    if not isinstance(example_inputs, (list, tuple)):
        raise UsageError(
            f"example_inputs must be a list or tuple with a value for each placeholder, not "
            f"{type(example_inputs).__name__}"
        )
    names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
    if len(names) != len(example_inputs):
        raise UsageError(
            f"the graph has {len(names)} placeholders ({', '.join(names) or 'none'}), but "
            f"example_inputs has {len(example_inputs)} values; pass one for each, in this order"
        )


def list_code_generators() -> list[loopir.FoundGenerator]:
    """The code generators that ``compile`` may use: the stack's own, the registered, and those of
    installed packages, whose names ``codegens`` takes.
    """
    registered, installed = loopir.registered_code_generators(), loopir.installed_code_generators()
    return [*own_generators(), *registered, *installed]


def reset() -> None:
    """Forgets every compiled entry and counter."""
    bytecode_dynamo.reset()
    counters.clear()
    _warned.clear()


def _check_flags(dynamic: object, **flags: object) -> None:
    for name, value in flags.items():
        if type(value) is not bool:
            raise UsageError(f"{name} must be True or False, not {value!r}")
    if dynamic is not None and type(dynamic) is not bool:
        raise UsageError(f"dynamic must be True, False or None, not {dynamic!r}")


def _settings(mode: str | None, options: Mapping[str, Any] | None) -> Config:
    if mode is not None and (not isinstance(mode, str) or mode not in MODES):
        raise UsageError(
            f"unknown mode {mode!r}; {did_you_mean(mode, MODES)}the modes are {', '.join(MODES)}"
        )
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(
            f"options must be a mapping of names to values, not {type(options).__name__}"
        )
    named = {_OPTIONS.get(name, name): value for name, value in (options or {}).items()}
    return config.with_options({**MODES[mode or "default"], **named})


@dataclass(frozen=True)
class Stack:
    """The graph backend that runs all stages, with the fallback that ``settings`` ask for."""

    settings: Config
    fullgraph: bool
    extensions: Extensions
    clock: CompileClock = field(init=False, compare=False, repr=False)
    __name__: ClassVar[str] = "torchstrata"

    def __post_init__(self) -> None:
        object.__setattr__(self, "clock", CompileClock(self.settings.compile_seconds))

    def __call__(
        self, graph: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Callable[..., Any]:
        return self.compile(graph, example_inputs)

    @property
    def frames(self) -> Callable[[Mapping[str, str]], KeptFrame | None] | None:
        """Keeps entries of frames (contract B11)."""
        return functools.partial(frame_slot, self) if self.settings.keep_frames else None

    def compile(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: list[Any],
        note: Callable[[GraphCacheEntry], None] | None = None,
    ) -> Callable[..., Any]:
        """Compiles a captured graph; ``note`` gets its place in the cache."""
        try:
            with deferred():
                return compile_captured(
                    self.settings, graph, example_inputs, self.extensions,
                    clock=self.clock, note=note,
                )  # fmt: skip
        except CompileError as error:
            takes_floats = any(
                isinstance(n.meta.get("val"), torch.SymFloat)
                for n in graph.graph.find_nodes(op="placeholder")
            )
            if self.fullgraph or self.settings.fallback == "error" or takes_floats:
                raise  # captured again where the trouble may be with floats: a graph per value
            return _eager_fallback(graph, f"a graph runs eagerly: {error.summary}")

    def precompile(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: bool | None
    ) -> Precompiled:
        """Compiles a target for a file (contract B10)."""
        return precompile(self.settings, self.extensions, target, args, kwargs, dynamic)

    def plain(self, graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """The stages without patterns and blocks, for a graph that failed (contract B9)."""
        with deferred():
            settings = self.settings.with_options({"patterns": False, "blocks": False})
            return compile_captured(settings, graph, example_inputs, self.extensions)


_warned: set[str] = set()
"""Each warning is given once: without a C++ compiler, every graph fails alike."""


def _eager_fallback(graph: torch.fx.GraphModule, warning: str) -> Callable[..., Any]:
    """The graph, run eagerly. It counts as a fallback once it has run: eager may raise, too."""
    has_run = False

    def run(*inputs: Any) -> Any:
        nonlocal has_run
        results = graph.forward(*inputs)
        if not has_run:
            has_run = True
            counters.compiler["fallbacks"] += 1
            if warning not in _warned:
                _warned.add(warning)
                warnings.warn(warning, FallbackWarning, stacklevel=2)
        return results

    return run
