"""Scheduled programs with their kernels' sources, kept in the artifact store under the graph that
they were made from.

What a process of the same versions, settings and machine has compiled before needs no
decomposition, fusion or code generation again. The key is a text of all that these read; a graph
with anything in it that has no such text (sizes that are not fixed, closures, tensors of foreign
types) is not kept, and compiled as if there were no store. User lines are no part of the key: a
graph that comes from other lines than before gets its own put in.
"""

from __future__ import annotations

import functools
import io
import operator
import pickle
import sys
import types
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import primops
import sympy
import torch
from primops import Prim
from symshapes import FakeTensor
from torch._ops import OpOverload

from loopir.backend import CodeGenerator, KernelSource, Reproducible
from loopir.ir.program import Program
from loopir.lowering import user_line

from .store import ArtifactStore

SUFFIX = ".program"
READ_WHILE_COMPILING = 64
"""Constants of up to so many elements may become numbers in kernels: their values are part of the
key.
"""
PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_TENSORS = (torch.Tensor, torch.nn.Parameter, FakeTensor)
SOURCES = (".py", ".h", ".c", ".cpp", ".jinja")
_FAILURES = (pickle.PickleError, TypeError, AttributeError, RecursionError)


class Undescribed(Exception):
    """The graph has something of which no text says all."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Where the program of one graph is kept. ``constants`` are the graph's own tensors by name,
    ``lines`` its user lines.
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
    ) -> Recall | None:
        """None where nothing can be kept. ``settings``: the caller's, plain values or dataclasses
        of them.
        """
        try:
            constants = dict(_constants(gm))
            generators = identities(codegens, devices_of(gm))
            lines = list(dict.fromkeys(map(user_line, gm.graph.nodes)))
            graph = _graph_text(gm, constants, lines)
            around = describe((process_state(), generators, settings))
        except Undescribed:
            return None
        return Recall(
            store, store.key("loopir.cache.program_cache", around, graph), constants, lines
        )

    def get(self) -> tuple[Program, Sequence[KernelSource]] | None:
        """What :meth:`put` kept, now or in another process."""
        path = self.store.get(self.key, SUFFIX)
        if path is None:
            return None
        try:
            return _Loader(io.BytesIO(zlib.decompress(path.read_bytes())), self).load()
        except Exception:  # whatever is wrong with the file, the graph can be compiled
            return None

    def put(self, program: Program, sources: Sequence[KernelSource]) -> None:
        """Keeps what has been made, unless it holds tensors or functions of its own."""
        data = io.BytesIO()
        with suppress(*_FAILURES):
            _Dumper(data, self).dump((program, sources))
            self.store.put(self.key, SUFFIX, zlib.compress(data.getvalue(), 1))


class _Dumper(pickle.Pickler):
    """Operators and the graph's own tensors by name, user lines by number."""

    def __init__(self, file: io.BytesIO, recall: Recall) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.names = {id(tensor): name for name, tensor in recall.constants.items()}
        self.numbers = {line: number for number, line in enumerate(recall.lines) if line}

    def persistent_id(self, obj: object) -> tuple[Any, ...] | None:
        if type(obj) is str:
            return ("line", self.numbers[obj]) if obj in self.numbers else None
        if isinstance(obj, OpOverload):
            return ("op", obj.namespace, obj._schema.name.split("::")[1], obj._overloadname)
        if isinstance(obj, Prim):
            return ("prim", obj.name)
        if isinstance(obj, torch.Tensor):
            if id(obj) not in self.names:
                raise pickle.PicklingError("a tensor made while compiling")
            return ("constant", self.names[id(obj)])
        return None

    def reducer_override(self, obj: object) -> Any:
        """What takes part in its own checks and simplification when it is made is put together
        again without them.
        """
        kind = type(obj)
        if kind in (sympy.Add, sympy.Mul):
            return kind._from_args, (obj.args,)  # type: ignore[attr-defined]
        parameters = getattr(kind, "__dataclass_params__", None)
        if parameters is not None and parameters.frozen and "__slots__" in kind.__dict__:
            return _put_together, (kind, *(getattr(obj, name) for name in _field_names(kind)))
        return NotImplemented


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _put_together(kind: type, *values: object) -> object:
    """A frozen dataclass with these fields."""
    made = object.__new__(kind)
    for name, value in zip(_field_names(kind), values, strict=True):
        object.__setattr__(made, name, value)
    return made


class _Loader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, recall: Recall) -> None:
        super().__init__(file)
        self.recall = recall

    def persistent_load(self, pid: tuple[Any, ...]) -> object:
        kind, name, *names = pid
        if kind == "op":
            return functools.reduce(getattr, (name, *names), torch.ops)
        return {
            "prim": primops.OPSET,
            "constant": self.recall.constants,
            "line": self.recall.lines,
        }[kind][name]


def devices_of(gm: torch.fx.GraphModule) -> set[str]:
    """Types of the devices of a graph's values: no other generator is asked, for that may wake its
    device's driver.
    """
    values = [node.meta.get("val") for node in gm.graph.nodes]
    return {
        item.device.type for value in values for item in _flat(value) if hasattr(item, "device")
    }


def _flat(value: object) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _constants(gm: torch.fx.GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    for node in gm.graph.find_nodes(op="get_attr"):
        value: Any = operator.attrgetter(str(node.target))(gm)
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise Undescribed(type(value))
        yield str(node.target), value


def _graph_text(
    gm: torch.fx.GraphModule, constants: Mapping[str, torch.Tensor], user_lines: Sequence[str]
) -> str:
    lines = [describe(gm.meta)]
    numbers = {line: number for number, line in enumerate(user_lines)}
    storages: dict[int, int] = {}
    for name, tensor in constants.items():
        number = storages.setdefault(tensor.untyped_storage().data_ptr(), len(storages))
        small = tensor.numel() <= READ_WHILE_COMPILING
        lines.append(
            f"{name} {describe(tensor)} storage {number} {tensor.tolist() if small else ''}"
        )
    for node in gm.graph.nodes:
        meta = {key: value for key, value in node.meta.items() if key != "stack_trace"}
        call = (
            f"{node.name} {node.op} {describe(node.target)} {describe(node.args)} "
            f"{describe(node.kwargs)}"
        )
        lines.append(f"{call} {describe(meta)} line {numbers[user_line(node)]}")
    return "\n".join(lines)


def describe(value: Any) -> str:
    """All of a value that compiling may read; equal texts mean that it can't tell the values apart.
    Raises Undescribed.
    """
    kind = type(value)
    if kind in PLAIN:
        return repr(value)
    if kind in (tuple, list) or isinstance(
        value, torch.Size | torch.fx.immutable_collections.immutable_list
    ):
        return f"{kind.__name__}({', '.join(map(describe, value))})"
    if isinstance(value, torch.Tensor):
        return _tensor_text(value)
    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if isinstance(value, OpOverload):
        return str(value) if value.namespace == "aten" else f"{value} {value._schema}"
    if isinstance(value, Mapping):
        items = sorted(f"{describe(key)}: {describe(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(describe, value)))}}}"
    if isinstance(value, Prim):
        return f"prims.{value.name}"
    if isinstance(value, slice):
        return f"slice{describe((value.start, value.stop, value.step))}"
    if isinstance(value, types.BuiltinFunctionType | type):
        return f"{value.__module__}.{value.__qualname__}"
    if is_dataclass(value):
        described = [describe(getattr(value, field.name)) for field in fields(value)]
        return f"{kind.__name__}({', '.join(described)})"
    raise Undescribed(kind)


def _tensor_text(value: torch.Tensor) -> str:
    sizes, strides = tuple(value.shape), value.stride()
    if type(value) not in _TENSORS:
        raise Undescribed(type(value))
    if value.layout is not torch.strided or not all(
        type(size) is int for size in (*sizes, *strides)
    ):
        raise Undescribed("sizes that are not fixed")
    flags = (value.is_conj(), value.is_neg(), value.requires_grad)
    return f"{value.dtype} {value.device} {sizes} {strides} {value.storage_offset()} {flags}"


def identities(
    codegens: Mapping[str, CodeGenerator], devices: Collection[str]
) -> tuple[object, ...]:
    """The generators of some devices with all that they depend on, and the files of the packages
    that take part.
    """
    used = {device: codegen for device, codegen in codegens.items() if device in devices}
    files = versions(
        "symshapes", "primops", "loopir", *(type(codegen).__module__ for codegen in used.values())
    )
    return (
        files,
        *((device, type(codegen), _identity(codegen)) for device, codegen in used.items()),
    )


def _identity(codegen: CodeGenerator) -> Sequence[str]:
    found = codegen.identity() if isinstance(codegen, Reproducible) else None
    if found is None:
        raise Undescribed(type(codegen))
    return found


def process_state() -> tuple[object, ...]:
    """State of the process that compiling may read."""
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        torch.backends.mkldnn.fp32_precision,  # type: ignore[attr-defined]
        torch.backends.cudnn.enabled,
        torch.backends.mkldnn.enabled,
        torch.backends.cpu.get_cpu_capability(),
    )


@functools.cache
def versions(*modules: str) -> tuple[object, ...]:
    """Python, torch, and the files of packages."""
    return (sys.version, str(torch.__version__), *(_files(name) for name in dict.fromkeys(modules)))


def _files(module: str) -> tuple[object, ...]:
    """Name, size and time of each file of the outermost package with files around a module, or of
    the module itself.
    """
    parts = module.split(".")
    around = (sys.modules.get(".".join(parts[: depth + 1])) for depth in range(len(parts)))
    origin = next(
        (Path(file) for found in around if (file := getattr(found, "__file__", None))), None
    )
    if origin is None:
        raise Undescribed(module)
    files = origin.parent.rglob("*") if origin.name == "__init__.py" else [origin]
    stats = {
        str(path.relative_to(origin.parent)): path.stat()
        for path in files
        if path.suffix in SOURCES
    }
    return tuple(
        sorted((name, status.st_size, status.st_mtime_ns) for name, status in stats.items())
    )
