"""The compiled-graph cache: a captured graph's calls as text.

The text holds the generated source and the objects that it names. The caller supplies the cache: it
looks graphs up, stores the texts, and builds the compiled functional graphs. Everything else of a
program is built here, without a trace.
"""

from __future__ import annotations

import ast
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from symshapes import ParseError
from symshapes.text.form import reading
from symshapes.text.names import find_target, format_target
from symshapes.text.values import MISSING, Unwritable, format_value, parse_value

from aotgrad.effect_plan import InputSpec
from aotgrad.errors import Unsupported
from aotgrad.names import PROCESS_OBJECTS
from aotgrad.running.autograd_function import define_function
from aotgrad.running.python_text import load_text

if TYPE_CHECKING:
    from aotgrad.graphs.partial_backward import PartialBackward
    from aotgrad.running.double_backward import DoubleBackward
    from aotgrad.running.prologue import Runtime

    Backwards: TypeAlias = tuple[DoubleBackward, PartialBackward | None, Sequence[str], int]

_PACKAGES = ("torch", "aotgrad", "symshapes", "builtins", "operator", "math")
"""Packages whose functions and classes a text may name."""
_ROOTS = {name: sys.modules[name] for name in _PACKAGES}


class CacheEntry(Protocol):
    """The cache entry of one graph. ``data`` is None on a miss; ``lines`` are the user's lines of
    the graph, which the data numbers; ``constants`` are the tensors that it names.
    """

    data: str | None
    lines: Sequence[str]
    constants: Mapping[str, torch.Tensor]

    def constant_name(self, tensor: torch.Tensor) -> str | None:
        """The name of a constant of the program; None if the entry keeps no constants."""
        ...

    def compiled(self, what: str) -> Any:
        """The compiled ``"inference"``, ``"forward"`` or ``"backward"`` graph; None if that graph
        computes nothing.
        """
        ...

    def put(self, write: Callable[[], str]) -> None:
        """Stores the data that ``write`` gives, with the functional graphs compiled since the
        lookup. ``write`` raises Unwritable for a program with objects that only this process has.
        """
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


def dump(run: Runtime, call: Callable[..., Any], text: str, entry: CacheEntry) -> str:
    """The JSON text of a compiled program. Raises Unwritable if it uses objects that only this
    process has.
    """
    if run.joint.nodes:
        raise Unwritable("an autograd function that does not compile")
    found: dict[str, Any] = call.__globals__  # type: ignore[attr-defined]
    ours = {"apply", "__builtins__", *PROCESS_OBJECTS}
    names = {
        k: v
        for k, v in found.items()
        if k not in ours and getattr(v, "__globals__", None) is not found
    }
    saved = None if run.split is None else tuple(n.name for n in run.split.saved)
    facts = (run.has_private_values, run.joint.plan.written_inputs, run.joint.freed_with, saved)
    leaf = _Leaf(run.eager, entry)
    return json.dumps([text, format_value(names, leaf.write), format_value(facts)])


def load(entry: CacheEntry, eager: Callable[..., Any]) -> CachedProgram:
    """Reads what :func:`dump` wrote; ``eager`` runs the program eagerly. Raises ParseError for
    damaged data.
    """
    leaf = _Leaf(eager, entry)
    with reading():
        text, *values = json.loads(entry.data or "")
        names, facts = (
            parse_value(ast.parse(value, mode="eval").body, leaf.read) for value in values
        )
        return CachedProgram(text, names, *facts)


def look_up(entry: CacheEntry, eager: Callable[..., Any]) -> CachedProgram | None:
    """The program of an entry; None on a miss, or for damaged data."""
    with suppress(ParseError):
        return None if entry.data is None else load(entry, eager)
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


class _Leaf:
    """Writes and reads what texts name: functions, classes, modules, dataclasses of aotgrad by
    their fields, and the user's lines by number.
    """

    def __init__(self, eager: Callable[..., Any], entry: CacheEntry) -> None:
        self._eager = eager
        self._entry = entry
        self._numbers = {line: number for number, line in enumerate(entry.lines)}

    def write(self, value: Any) -> str | None:
        """The text of such an object; None for other values. Raises Unwritable."""
        if value is self._eager:
            return "eager"
        if type(value) is str and value and value in self._numbers:
            return f"line({self._numbers[value]})"
        if isinstance(value, torch.Tensor):
            name = self._entry.constant_name(value)
            return None if name is None else f"constant({name!r})"
        if isinstance(value, types.ModuleType):
            return f"module({value.__name__!r})"
        kind = type(value)
        if is_dataclass(kind) and kind.__module__.startswith("aotgrad."):
            given = [getattr(value, field.name) for field in fields(kind) if field.init]
            inner = ", ".join(format_value(item, self.write) for item in given)
            return f"{format_target(kind, _ROOTS)}({inner})"
        return format_target(value, _ROOTS) if callable(value) else None

    def read(self, node: ast.expr) -> Any:
        """The object of a text; MISSING for other values."""
        match node:
            case ast.Name(id="eager"):
                return self._eager
            case ast.Call(func=ast.Name(id="line"), args=[ast.Constant(value=int(number))]):
                return self._entry.lines[number]
            case ast.Call(func=ast.Name(id="constant"), args=[ast.Constant(value=str(name))]):
                return self._entry.constants[name]
            case ast.Call(func=ast.Name(id="module"), args=[ast.Constant(value=str(name))]):
                if name.partition(".")[0] in _ROOTS:
                    return sys.modules.get(name, MISSING)
            case ast.Attribute() if callable(found := find_target(ast.unparse(node), _ROOTS)):
                return found
            case ast.Call(func=ast.Attribute(), args=arguments):
                kind = find_target(ast.unparse(node.func), _ROOTS)
                if is_dataclass(kind) and isinstance(kind, type):
                    return kind(*(parse_value(argument, self.read) for argument in arguments))
        return MISSING
