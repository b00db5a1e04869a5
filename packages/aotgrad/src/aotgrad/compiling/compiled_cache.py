"""The compiled-graph cache: a captured graph's calls as bytes.

The bytes hold the generated text and the objects that it names. The caller supplies the cache: it
looks graphs up, stores the bytes, and builds the compiled functional graphs. Everything else of a
program is built here, without a trace.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from aotgrad.effect_plan import InputSpec
from aotgrad.errors import Unsupported
from aotgrad.graphs.partial_backward import PartialBackward
from aotgrad.names import PROCESS_OBJECTS
from aotgrad.running.autograd_function import define_function
from aotgrad.running.double_backward import DoubleBackward
from aotgrad.running.emit import load_text
from aotgrad.running.prologue import Runtime

_OWNERS = frozenset(["torch", "aotgrad", "symshapes", "builtins", "_operator", "operator", "math"])
"""Packages whose objects may be replaced by copies: nobody compares them by identity."""
_FAILURES = (pickle.PickleError, TypeError, AttributeError)


class CacheEntry(Protocol):
    """The cache entry of one graph. ``data`` is None on a miss."""

    data: bytes | None

    def compiled(self, what: str) -> Any:
        """The compiled ``"inference"``, ``"forward"`` or ``"backward"`` graph; None if that graph
        computes nothing.
        """
        ...

    def put(self, data: bytes) -> None:
        """Stores the data, with the functional graphs compiled since the lookup."""
        ...


CacheLookup = Callable[[torch.fx.GraphModule, Sequence[InputSpec], bool], CacheEntry | None]
"""Takes a captured graph, the specs of its inputs, and the grad mode; returns None for a graph that
can't be cached.
"""


@dataclass(frozen=True, slots=True)
class CachedProgram:
    """The generated calls of a program.

    Attributes:
        text: the source of its functions.
        names: the globals of the text, without those created anew in each process.
        has_private_values: whether the compiled graphs keep what only backward sees (B7).
        written: indices of the inputs that it writes to.
        freed_with: see ``Joint``.
        saved: names of the nodes that are saved for backward; None without an autograd function.
    """

    text: str
    names: Mapping[str, Any]
    has_private_values: bool
    written: Sequence[int]
    freed_with: Sequence[int]
    saved: Sequence[str] | None

    @property
    def trains(self) -> bool:
        """Whether the program has an autograd function."""
        return self.saved is not None


def dump(run: Runtime, call: Callable[..., Any], text: str) -> bytes | None:
    """The data of a compiled program; None if it uses objects that only this process has."""
    if run.joint.nodes:
        return None
    found: dict[str, Any] = call.__globals__  # type: ignore[attr-defined]
    ours = {"apply", "__builtins__", *PROCESS_OBJECTS}
    names = {
        k: v
        for k, v in found.items()
        if k not in ours and getattr(v, "__globals__", None) is not found
    }
    saved = None if run.split is None else tuple(n.name for n in run.split.saved)
    written, freed_with = run.joint.plan.written_inputs, run.joint.freed_with
    cached = CachedProgram(text, names, run.has_private_values, written, freed_with, saved)
    data = io.BytesIO()
    with suppress(*_FAILURES):
        _ProgramPickler(data, run.eager).dump(cached)
        return data.getvalue()
    return None


def load(data: bytes | None, eager: Callable[..., Any]) -> CachedProgram | None:
    """Reads what :func:`dump` wrote; ``eager`` runs the program eagerly. None for damaged data."""
    try:
        return None if data is None else _ProgramUnpickler(io.BytesIO(data), eager).load()
    except Exception:  # whatever is wrong with the data, the program can be compiled
        return None


def revive(
    cached: CachedProgram,
    entry: CacheEntry,
    anew: Mapping[str, Any],
    wrap_backward: Callable[..., Any] | None,
) -> Callable[..., Any]:
    """The callable of a cached program. ``anew`` has the globals of ``PROCESS_OBJECTS``, without
    the compiled graphs.
    """
    graphs = {"forward": entry.compiled("forward" if cached.trains else "inference")}
    if cached.trains:
        graphs["backward"] = entry.compiled("backward")
    if cached.has_private_values:
        graphs = {"forward": graphs["forward"].keeping(), "backward": graphs["backward"].taking()}
    call = load_text(cached.text, {**cached.names, **anew, **graphs}, "call")
    if cached.trains:
        define_function(call, cached.freed_with, wrap_backward)
    return call


Backwards = tuple[DoubleBackward, PartialBackward | None, Sequence[str], int]


class DeferredBackward:
    """Double and partial backward of a cached program, which is traced on their first use."""

    def __init__(self, cached: CachedProgram, make: Callable[[], Backwards]) -> None:
        self._cached = cached
        self._make = make
        self._made: tuple[DoubleBackward, PartialBackward | None] | None = None

    def _get(self, what: str) -> tuple[DoubleBackward, PartialBackward | None]:
        if self._made is None:
            double, partial, saved, count = self._make()
            if tuple(saved) != self._cached.saved:
                raise Unsupported(
                    "AG030", f"{what}: settings of torch are other ones than in the forward pass"
                )
            double.num_private = count if self._cached.has_private_values else 0
            self._made = double, partial
        return self._made

    def double(
        self, ctx: Any, tangents: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """See ``DoubleBackward``."""
        return self._get("create_graph=True")[0](ctx, tangents)

    def partial(self, given: int, arguments: Sequence[Any]) -> list[torch.Tensor | None]:
        """See ``PartialBackward``."""
        found = self._get("backward through some results only")[1]
        assert found is not None  # the text asks where there is one
        return found(given, arguments)


class _ProgramPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, eager: Callable[..., Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._eager = eager

    def persistent_id(self, obj: object) -> tuple[str, ...] | None:
        if obj is self._eager:
            return ("eager",)
        if isinstance(obj, types.ModuleType):
            return ("module", obj.__name__)
        if isinstance(obj, torch._ops.OpOverload):
            return ("op", obj.namespace, obj._schema.name.split("::")[1], obj._overloadname)
        if isinstance(obj, types.BuiltinFunctionType):  # pickle would look into what owns it
            owner = obj.__module__ or "torch"
            if getattr(sys.modules.get(owner), obj.__name__, None) == obj:
                return ("builtin", owner, obj.__name__)
        return None

    def reducer_override(self, obj: object) -> Any:
        made_of = obj if isinstance(obj, type | types.FunctionType) else type(obj)
        if (
            isinstance(obj, torch.Tensor | torch.Generator)
            or made_of.__module__.partition(".")[0] not in _OWNERS
        ):
            raise pickle.PicklingError(f"{made_of} belongs to this process")
        return NotImplemented


class _ProgramUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, eager: Callable[..., Any]) -> None:
        super().__init__(file)
        self._eager = eager

    def persistent_load(self, pid: tuple[str, ...]) -> Any:
        kind, *names = pid
        if kind == "eager":
            return self._eager
        if kind == "module":
            return importlib.import_module(names[0])
        if kind == "builtin":
            return getattr(sys.modules[names[0]], names[1])
        return functools.reduce(getattr, names, torch.ops)
