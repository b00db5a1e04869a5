"""The cache of captured graphs: a hit needs no autograd, partition or lowering.

An entry of the artifact store holds the generated text of a graph's calls (``aotgrad``'s
compiled_cache) and the keys of its programs (``loopir.cache.program_cache``). The key describes
everything that the result depends on: the captured graph with its metadata, its inputs, settings,
the state of torch, the files of our packages, and of operators outside torch what compilation reads
(``operators``). Graphs that have no such description are not cached: those with sizes that depend
on data, functions outside torch, operators that lead to something unknown, or under modes.
"""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aotgrad
import loopir
import symshapes
import torch
from symshapes.text.form import reading
from symshapes.text.names import find_target
from symshapes.text.values import Unwritable, format_value, parse_value
from torch._ops import OpOverload
from torch.utils._python_dispatch import _len_torch_dispatch_stack

from .constants import STORED, constants_text, is_storable, read_constants
from .counters import counters
from .operators import describe_operators, foreign_operators

if TYPE_CHECKING:
    from .lock_file import LockedGraph
    from .tracing import GraphTrace

log = logging.getLogger("torchstrata.cache")
SUFFIX = ".graph"
_ABOVE_KERNELS = ("/Auto", "/Composite", "/Functionalize", "/Python")
"""Dispatch keys above kernels: a Python registration at one of them changes the trace."""
_TORCHS_OWN = "/PythonTLSSnapshot"
"""torch 2.15 registers this one itself, for ``to_dense``."""
_FOREIGN = re.compile(r"\bops\.(?!aten\.)\w+\.\w+\.\w+")
_C: Any = torch._C


@dataclass(slots=True)
class GraphCacheEntry:
    """The entry of one captured graph (``aotgrad.compiling.compiled_cache.CacheEntry``).

    ``operators`` are those outside torch that the graph may lead to, ``foreign`` describes them.
    ``lines`` are the graph's user lines, which texts number. ``new_graphs`` collects the key, the
    user lines, the metadata and the constants of what is compiled, with None for what can't be
    cached; ``build`` creates the callable of a cached program. With a ``trace``, which wants every
    stage, what another process compiled is compiled again. With a ``lock``, the key has
    its choices.
    """

    store: loopir.ArtifactStore
    settings: Sequence[object]
    codegens: Mapping[str, loopir.CodeGenerator]
    build: Callable[[loopir.StoredProgram, Mapping[str, Any]], Callable[..., Any]]
    trace: GraphTrace | None = None
    lock: LockedGraph | None = None
    new_graphs: dict[str, tuple[Any, ...] | None] = field(default_factory=dict)
    lines: Sequence[str] = ()
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    foreign: str = ""
    operators: Sequence[OpOverload] = ()
    key: str = ""
    data: str | None = None
    _plain: str = ""
    _held: ExitStack = field(default_factory=ExitStack)
    _env: symshapes.ShapeEnv | None = None
    _assumed: int = 0
    _programs: dict[str, tuple[loopir.StoredProgram, Mapping[str, Any]]] = field(
        default_factory=dict
    )

    def __call__(
        self, graph: torch.fx.GraphModule, inputs: Sequence[Any], grad_enabled: bool
    ) -> GraphCacheEntry | None:
        """Looks up a captured graph; None if it can't be cached."""
        try:
            _check_calls(graph)
            self.constants = loopir.constants_of(graph)
            devices = loopir.devices_of(graph) | {"cpu"}
            traces = {_trace(node): loopir.user_line(node) for node in graph.graph.nodes}
            numbers = {trace: number for number, trace in enumerate(traces)}
            self.lines = [*map(str.rstrip, traces), *traces.values(), ""]
            text = loopir.describe_graph(graph, lambda node: numbers[_trace(node)])
            versions = loopir.package_versions("torchstrata", "aotgrad")
            state = grad_enabled, state_of_torch(), loopir.process_state()
            self.foreign, self.operators = describe_operators(foreign_operators(graph))
            self.key = self.store.key(
                "torchstrata.graph_cache",
                settings=loopir.describe(tuple(self.settings)),
                state_of_torch=loopir.describe(state),
                versions=loopir.describe(versions),
                code_generators=loopir.describe(loopir.describe_generators(self.codegens, devices)),
                inputs=loopir.describe(tuple(inputs)),
                constants=loopir.describe_constants(self.constants),
                operators=self.foreign,
                graph=text,
            )
        except loopir.Undescribed as error:
            log.info("a graph is not cached: %s has no description", error)
            self._note(None, False)
            return None
        self._env = loopir.environment_of(graph)
        self._assumed = 0 if self._env is None else len(self._env.guards)
        with counters.watching(self.store):
            plain, self.key = self.key, self._keyed(self.key)
            self.data = self.load()
            if self.data is None and self._waits(plain):
                self.key = self._keyed(plain)
                self.data = self.load()
        self._note(self.key, self.data is not None)
        if self.data is None:
            loopir.note_miss(self.store, self.key, SUFFIX)
        if self.trace is not None and not self.trace.repeats:
            self.data = None
            self._programs.clear()
        return self

    def _note(self, key: str | None, is_found: bool) -> None:
        if key is not None:
            said = "is" if is_found else "is not"
            log.info("graph %s %s in the cache", key, said, extra={"fields": {"key": key}})
        if self.trace is not None:
            self.trace.note_lookup("graph", "", self.store, key, is_found)

    def _keyed(self, key: str) -> str:
        """The key with the known choices of a lock file."""
        self._plain = key
        if self.lock is None:
            return key
        self.lock.refresh()
        return self.lock.keyed(self.store, key)

    def _waits(self, key: str) -> bool:
        """Holds the key until ``close``; whether another process held it before."""
        with symshapes.unlocked():  # other threads may trace meanwhile
            return self._held.enter_context(self.store.hold(key))

    def close(self) -> None:
        """Lets other processes look for the entry."""
        self._held.close()

    def load(self) -> str | None:
        """The data of the entry with its programs; None if something is missing."""
        if self.lock is not None and not self.lock.known:
            return None  # choices are to be recorded
        path = self.store.get(self.key, SUFFIX)
        if path is None:
            return None
        with suppress(loopir.ParseError), reading():
            stored = json.loads(path.read_text())
            self.constants = {**self.constants, **read_constants(stored["constants"])}
            for what, (key, numbers, meta, names) in stored["programs"].items():
                lines = [self.lines[int(number)] for number in numbers]
                constants = {name: self.constants[ours] for name, ours in names.items()}
                found = loopir.ProgramCacheEntry(self.store, key, constants, lines).get()
                if found is None or not self._has_operators(found):
                    return None
                self._programs[what] = (found, parse_value(ast.parse(meta, mode="eval").body))
            if self._env is not None:
                symshapes.add_assumptions(self._env, stored["assumptions"])
            return stored["calls"]
        return None  # a damaged file is a miss

    def _has_operators(self, program: loopir.StoredProgram) -> bool:
        """Whether this process has the operators outside torch that a program calls, or makes them
        as the trace did.
        """
        host = program.stored.get("host") or {}
        for name in _FOREIGN.findall(f"{program.stored['program']} {host.get('objects')}"):
            if find_target(name) is None:
                aotgrad.make_operator(name.split(".")[2], self.operators)
            if find_target(name) is None:
                return False
        return True

    def constant_name(self, tensor: torch.Tensor) -> str | None:
        """The name of a constant of the captured graph, or of a small one that is stored."""
        known = {id(value): name for name, value in self.constants.items()}
        if id(tensor) in known:
            return known[id(tensor)]
        if not is_storable(tensor):
            return None
        name = f"{STORED}{len(self.constants)}"
        self.constants = {**self.constants, name: tensor}
        return name

    def compiled(self, what: str) -> Any:
        """See ``aotgrad.compiling.compiled_cache.CacheEntry``."""
        return self.build(*self._programs[what]) if what in self._programs else None

    def put(self, write: Callable[[], str]) -> None:
        """See ``aotgrad.compiling.compiled_cache.CacheEntry``."""
        with suppress(Unwritable):
            if None in self.new_graphs.values():
                return
            stored = {
                "calls": write(),
                "programs": self.new_graphs,
                "constants": constants_text(self.constants),
                "assumptions": []
                if self._env is None
                else symshapes.format_assumptions(self._env, self._assumed),
            }
            if self.lock is not None:
                self.key = self._keyed(self._plain)
            self.store.put(self.key, SUFFIX, json.dumps(stored).encode())

    def record(
        self, what: str, entry: loopir.ProgramCacheEntry | None, meta: Mapping[str, Any]
    ) -> None:
        """Adds a compiled functional graph to the entry."""
        self.new_graphs[what] = None
        if entry is not None:
            known = {line: number for number, line in enumerate(self.lines)}
            names = {name: self.constant_name(value) for name, value in entry.constants.items()}
            with suppress(Unwritable, KeyError):  # KeyError: a line of another graph
                numbers = [known[line] for line in entry.lines]
                if None not in names.values():
                    self.new_graphs[what] = entry.key, numbers, format_value(dict(meta)), names


def _trace(node: torch.fx.Node) -> str:
    return str(node.meta.get("stack_trace") or "")


def state_of_torch() -> tuple[object, ...]:
    """State of torch that traces read, in addition to what programs depend on."""
    if _C._len_torch_function_stack() or _len_torch_dispatch_stack():
        raise loopir.Undescribed("modes")
    replaced = [name for name in torch.library._impls if name.startswith("aten/")]
    replaced = [name for name in replaced if not name.endswith(_TORCHS_OWN)]
    if any(key in name for name in replaced for key in _ABOVE_KERNELS):
        raise loopir.Undescribed("operators of torch that somebody has exchanged")
    return (
        [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
        ],
        torch.is_autocast_cache_enabled(),
        torch.is_inference_mode_enabled(),
        (
            _C._get_flash_sdp_enabled(),
            _C._get_mem_efficient_sdp_enabled(),
            _C._get_math_sdp_enabled(),
            _C._get_cudnn_sdp_enabled(),
        ),
        str(_C._get_linalg_preferred_backend()),
        _C._get_deterministic_fill_uninitialized_memory(),
    )


def _check_calls(graph: torch.fx.GraphModule) -> None:
    """Raises Undescribed for modules, whose code is not part of the key."""
    for node in graph.graph.nodes:
        if node.op == "call_module":
            raise loopir.Undescribed(node.target)
