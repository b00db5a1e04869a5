"""The cache of frames: a hit needs no capture (contract B11).

An entry of the artifact store holds what ``bytecode_dynamo`` keeps of a frame, the key of its graph
in the graph cache, and the text of the captured graph, which is read where something has to be
compiled late. The key names the frame, its arguments, settings, the state of torch and the process,
and the files of our packages.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Protocol, TypeAlias

import aotgrad
import bytecode_dynamo
import loopir
import symshapes
import torch
from symshapes.text.form import reading
from symshapes.text.names import format_target
from symshapes.text.values import Unwritable

from .artifacts.recording import without_directories
from .bisect import active
from .config import Config
from .context import Context, new_context, open_store, revive
from .counters import counters
from .extensions import Extensions
from .graph_cache import GraphCacheEntry, state_of_torch
from .operators import describe_named
from .refusals import SUFFIX
from .stages import autograd_options
from .tracing import current

Json: TypeAlias = Any
log = logging.getLogger("torchstrata.cache")


class Stack(Protocol):
    """The graph backend whose frames are kept."""

    @property
    def settings(self) -> Config: ...
    @property
    def fullgraph(self) -> bool: ...
    @property
    def extensions(self) -> Extensions: ...
    def compile(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: list[Any],
        note: Callable[[GraphCacheEntry], None] | None = None,
    ) -> Callable[..., Any]:
        """Compiles a captured graph; ``note`` gets its place in the cache."""
        ...


@dataclass(slots=True)
class KeptFrame:
    """The place of one frame in the store (``bytecode_dynamo.kept.protocol.FrameSlot``)."""

    stack: Stack
    store: loopir.ArtifactStore
    key: str
    entry: GraphCacheEntry | None = None
    graph: Json | None = None
    reason: str = ""
    _held: ExitStack = field(default_factory=ExitStack)

    def get(self) -> Json | None:
        """What is there."""
        with counters.watching(self.store):
            path = self.store.get(self.key, SUFFIX)
        if path is None:
            return None
        with suppress(symshapes.ParseError), reading():
            return dict(json.loads(path.read_text()))
        return None

    def hold(self) -> bool:
        """Makes other processes wait; whether this one has waited."""
        with symshapes.unlocked():
            return self._held.enter_context(self.store.hold(self.key))

    def close(self) -> None:
        """Lets the others go on."""
        self._held.close()

    def compile(self, graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """Runs the stages and notes how their result is found again."""
        entries: list[GraphCacheEntry] = []
        compiled = self.stack.compile(graph, example_inputs, entries.append)
        try:
            if len(entries) == 1 and self._is_stored(entries[0]):
                self.graph = _describe(graph, example_inputs, entries[0])
        except Unwritable as error:
            self.reason = error.what
        except Exception as error:
            if symshapes.is_of_handler(error):
                raise
            self.reason = f"{type(error).__name__}: {error}"
        return compiled

    def _is_stored(self, entry: GraphCacheEntry) -> bool:
        return bool(entry.key) and (entry.key, ".graph") in entry.store.used

    def put(self, frame: Json) -> None:
        """Stores a frame with its graph, or why there is none."""
        if "refused" not in frame and self.graph is None:
            frame = {
                **{name: frame[name] for name in ("form", "version", "where", "table")},
                "refused": self.reason or "a graph that is not cached",
            }
        data = json.dumps({**frame, "graph": self.graph}).encode()
        with counters.watching(self.store):
            self.store.put(self.key, SUFFIX, data)

    def revive(
        self, frame: Json
    ) -> tuple[Callable[..., Any], Callable[[], torch.fx.GraphModule]] | None:
        """The compiled graph of a frame, and what gives the captured one; None if it is gone."""
        graph = frame["graph"]
        ctx = new_context(self.stack.settings, graph["devices"], self.stack.extensions)
        if _generators(ctx, graph["devices"]) != graph["generators"]:
            return None
        entry = GraphCacheEntry(ctx.store, (), ctx.codegens, partial(revive, ctx))
        entry.key, entry.lines = graph["key"], graph["lines"]
        described = describe_named(graph["operators"])
        if described is None or described[0] != graph["foreign"]:
            return None  # an operator has changed, and with it what the graph's key was made of
        entry.operators = described[1]
        with counters.watching(ctx.store):
            entry.data = entry.load()
        if entry.data is None:
            return None

        @cache
        def captured() -> torch.fx.GraphModule:
            return bytecode_dynamo.parse_captured(graph["text"])

        call = aotgrad.load_compiled(
            entry,
            lambda: aotgrad.captured_compilation(captured(), **autograd_options(ctx)),
            grad_enabled=torch.is_grad_enabled(),
            wrap_backward=bytecode_dynamo.disable,
        )
        return call, captured


def _describe(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], entry: GraphCacheEntry
) -> Json:
    """How the callable of a graph is found again. Raises Unwritable."""
    lazy = (
        x for x in example_inputs if isinstance(x, torch.Tensor) and (x.is_conj() or x.is_neg())
    )
    if next(lazy, None) is not None or loopir.constants_of(graph):
        raise Unwritable("a graph with constants, or for lazily conjugated tensors")
    if torch.is_inference_mode_enabled() and aotgrad.leaves_inference_mode(graph.graph):
        raise Unwritable("a graph that leaves inference mode")
    devices = sorted(loopir.devices_of(graph))
    return {
        "key": entry.key,
        "foreign": entry.foreign,
        "operators": [*map(format_target, entry.operators)],
        "lines": [*map(without_directories, entry.lines)],
        "devices": devices,
        "generators": _generators_text(entry.codegens, devices),
        "text": without_directories(bytecode_dynamo.format_captured(graph)),
    }


def _generators(ctx: Context, devices: Sequence[str]) -> str:
    return _generators_text(ctx.codegens, devices)


def _generators_text(codegens: Mapping[str, loopir.CodeGenerator], devices: Sequence[str]) -> str:
    return loopir.describe(loopir.describe_generators(codegens, {*devices, "cpu"}))


def frame_slot(stack: Stack, names: Mapping[str, str]) -> KeptFrame | None:
    """The place of a frame; None where nothing is kept: under checks, dumps, traces and searches,
    with extensions that have no key, or state that has no description.
    """
    settings = stack.settings
    if _is_watched(settings) or None in stack.extensions.keys:
        return None
    store = open_store(settings.cache_dir)
    try:
        described = {
            "settings": loopir.describe(
                (stack.fullgraph, *settings.compile_settings(), *stack.extensions.keys)
            ),
            "state_of_torch": loopir.describe((state_of_torch(), loopir.process_state())),
            "versions": loopir.describe(_versions()),
        }
    except loopir.Undescribed as error:
        log.info("frames are not kept: %s has no description", error)
        return None
    return KeptFrame(stack, store, store.key("torchstrata.kept_frames", **described, **names))


def _is_watched(settings: Config) -> bool:
    """Whether somebody wants to see every stage or choice, or to compare results."""
    is_seen = active.current() is not None or current() is not None or settings.lock is not None
    return is_seen or settings.checks or settings.compares or settings.dump is not None


def _versions() -> tuple[object, ...]:
    numpy = getattr(sys.modules.get("numpy"), "__version__", "")
    files = loopir.package_versions("torchstrata", "aotgrad", "bytecode_dynamo", "symshapes")
    return (*files, str(numpy))
