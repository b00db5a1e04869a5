"""What was compiled from a captured graph as data: the text of its calls and the objects that this
names.

A memory of compiled graphs is somebody else's. It says for which graphs it has something, keeps
bytes, and makes the compiled functional graphs anew; the rest of a program is made here, without a
trace.
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
"""Packages whose objects are as good as new: nobody knows them by identity."""
_FAILURES = (pickle.PickleError, TypeError, AttributeError)


class CacheEntry(Protocol):
    """What a memory has of one graph. ``data`` is None when it has nothing yet."""

    data: bytes | None

    def compiled(self, what: str) -> Any:
        """The compiled ``"inference"``, ``"forward"`` or ``"backward"`` graph; None where nothing
        was to be compiled.
        """
        ...

    def put(self, data: bytes) -> None:
        """Keeps the data, with the functional graphs that were compiled since the entry was asked
        for.
        """
        ...


CacheLookup = Callable[[torch.fx.GraphModule, Sequence[InputSpec], bool], CacheEntry | None]
"""Asked with a captured graph, what is known of its inputs, and the grad mode; None for what it
keeps nothing of.
"""


@dataclass(frozen=True, slots=True)
class CachedProgram:
    """A program's calls.

    Attributes:
        text: of its functions.
        names: what the text names beside what is made anew.
        trains: whether it has an autograd function.
        keeps: whether the compiled graphs keep what only backward sees (B7).
        written: indices of the inputs that it writes to.
        freed_with: see ``Joint``.
        saved: names of the nodes that are saved for backward.
    """

    text: str
    names: Mapping[str, Any]
    trains: bool
    has_private_values: bool
    written: Sequence[int]
    freed_with: Sequence[int]
    saved: Sequence[str]


def written_inputs(run: Runtime) -> list[int]:
    """Indices of the inputs that a program writes to."""
    return [m.target.index for m in run.joint.plan.mutations if m.target.index >= 0]


def dump(run: Runtime, call: Callable[..., Any], text: str) -> bytes | None:
    """The data of a compiled program, None where objects of this process belong to it."""
    if run.joint.nodes:
        return None
    found: dict[str, Any] = call.__globals__  # type: ignore[attr-defined]
    ours = {"apply", "__builtins__", *PROCESS_OBJECTS}
    names = {
        k: v
        for k, v in found.items()
        if k not in ours and getattr(v, "__globals__", None) is not found
    }
    saved = () if run.split is None else tuple(n.name for n in run.split.saved)
    trains = run.split is not None
    cached = (
        text,
        names,
        trains,
        run.has_private_values,
        written_inputs(run),
        run.joint.freed_with,
        saved,
    )
    data = io.BytesIO()
    with suppress(*_FAILURES):
        _ProgramPickler(data, run.eager).dump(cached)
        return data.getvalue()
    return None


def load(data: bytes | None, eager: Callable[..., Any]) -> CachedProgram | None:
    """What :func:`dump` wrote, for a program that runs eagerly as ``eager`` does."""
    try:
        if data is None:
            return None
        return CachedProgram(*_ProgramUnpickler(io.BytesIO(data), eager).load())
    except Exception:  # whatever is wrong with the data, the program can be compiled
        return None


def revive(
    cached: CachedProgram,
    entry: CacheEntry,
    anew: Mapping[str, Any],
    wrap_backward: Callable[..., Any] | None,
) -> Callable[..., Any]:
    """The callable of a cached program. ``anew``: the objects of this process by name, less the
    compiled graphs.
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
    """The other ways backward of a cached program: the program is traced when one of them is first
    asked for.
    """

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
