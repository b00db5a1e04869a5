"""Cache of scheduled programs with the sources of their kernels, keyed by the functional graph.

A hit skips decomposition, fusion and code generation. A graph that can't be described
(``cache_key``) is compiled without the cache. The user's lines are not part of the key: a hit gets
the lines of the graph that was looked up.
"""

from __future__ import annotations

import functools
import io
import operator
import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import primops
import sympy
import torch
from primops import Prim
from torch._ops import OpOverload

from loopir.backend import CodeGenerator, KernelSource
from loopir.ir.program import Program
from loopir.lowering import user_line

from .cache_key import (
    Undescribed,
    describe,
    describe_constants,
    describe_generators,
    describe_graph,
    devices_of,
    process_state,
)
from .store import ArtifactStore

SUFFIX = ".program"
_FAILURES = (pickle.PickleError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class ProgramCacheEntry:
    """The cache entry of one graph's program.

    Attributes:
        store: the store that contains the entry.
        key: the entry's key in the store.
        constants: the graph's constants by name.
        lines: the user's lines from which the graph's nodes come.
    """

    store: ArtifactStore
    key: str
    constants: Mapping[str, torch.Tensor]
    lines: Sequence[str]

    @staticmethod
    def of(
        gm: torch.fx.GraphModule,
        codegens: Mapping[str, CodeGenerator],
        store: ArtifactStore,
        *settings: object,
    ) -> ProgramCacheEntry | None:
        """The cache entry of ``gm``; None if it can't be cached. ``settings``: everything else that
        the stages read, as plain values or dataclasses of them.
        """
        try:
            constants = dict(_constants(gm))
            generators = describe_generators(codegens, devices_of(gm))
            lines = list(dict.fromkeys(map(user_line, gm.graph.nodes)))
            graph = "\n".join([describe_constants(constants), describe_graph(gm, lines)])
            around = describe((process_state(), generators, settings))
        except Undescribed:
            return None
        key = store.key("loopir.cache.program_cache", around, graph)
        return ProgramCacheEntry(store, key, constants, lines)

    def get(self) -> tuple[Program, Sequence[KernelSource]] | None:
        """The program and its sources, if this process or another cached them; else None."""
        path = self.store.get(self.key, SUFFIX)
        if path is None:
            return None
        try:
            return _Loader(io.BytesIO(zlib.decompress(path.read_bytes())), self).load()
        except Exception:  # a damaged file counts as a miss
            return None

    def put(self, program: Program, sources: Sequence[KernelSource]) -> None:
        """Caches a program, unless it contains tensors other than the graph's constants, or
        functions that can't be pickled.
        """
        data = io.BytesIO()
        with suppress(*_FAILURES):
            _Dumper(data, self).dump((program, sources))
            self.store.put(self.key, SUFFIX, zlib.compress(data.getvalue(), 1))


class _Dumper(pickle.Pickler):
    """Pickles operators and the graph's constants by name, and user lines by number."""

    def __init__(self, file: io.BytesIO, entry: ProgramCacheEntry) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.names = {id(tensor): name for name, tensor in entry.constants.items()}
        self.numbers = {line: number for number, line in enumerate(entry.lines) if line}

    def persistent_id(self, obj: object) -> tuple[Any, ...] | None:
        if type(obj) is str:
            return ("line", self.numbers[obj]) if obj in self.numbers else None
        if isinstance(obj, OpOverload):
            return ("op", obj.namespace, obj._schema.name.split("::")[1], obj._overloadname)
        if isinstance(obj, Prim):
            return ("prim", obj.name)
        if isinstance(obj, torch.Tensor):
            if id(obj) not in self.names:
                raise pickle.PicklingError("a tensor restored while compiling")
            return ("constant", self.names[id(obj)])
        return None

    def reducer_override(self, obj: object) -> Any:
        """Pickles expressions and frozen dataclasses such that they are restored without the checks
        and simplifications of their constructors.
        """
        kind = type(obj)
        if kind in (sympy.Add, sympy.Mul):
            return kind._from_args, (obj.args,)  # type: ignore[attr-defined]
        parameters = getattr(kind, "__dataclass_params__", None)
        if parameters is not None and parameters.frozen and "__slots__" in kind.__dict__:
            return _restore, (kind, *(getattr(obj, name) for name in _field_names(kind)))
        return NotImplemented


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _restore(kind: type, *values: object) -> object:
    """Creates a frozen dataclass from the values of its fields, without calling its constructor."""
    restored = object.__new__(kind)
    for name, value in zip(_field_names(kind), values, strict=True):
        object.__setattr__(restored, name, value)
    return restored


class _Loader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, entry: ProgramCacheEntry) -> None:
        super().__init__(file)
        self.entry = entry

    def persistent_load(self, pid: tuple[Any, ...]) -> object:
        kind, name, *names = pid
        if kind == "op":
            return functools.reduce(getattr, (name, *names), torch.ops)
        return {"prim": primops.OPSET, "constant": self.entry.constants, "line": self.entry.lines}[
            kind
        ][name]


def _constants(gm: torch.fx.GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    for node in gm.graph.find_nodes(op="get_attr"):
        value: Any = operator.attrgetter(str(node.target))(gm)
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise Undescribed(type(value))
        yield str(node.target), value
