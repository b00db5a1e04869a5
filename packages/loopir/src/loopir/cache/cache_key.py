"""Cache keys: texts that describe everything that compilation reads. Equal texts mean equal
results.

A graph is not cached if something in it can't be described: sizes that depend on data, functions
and classes outside torch and these packages, tensors of other classes.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import operator
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import primops
import symshapes
import torch
from symshapes.text.values import Unwritable
from torch._ops import OpOverload, OpOverloadPacket

from loopir.backend import CodeGenerator, Reproducible
from loopir.ir.nest import leaves

READ_WHILE_COMPILING = 64
"""Maximum number of elements of constants that may become numbers in kernels: their values are part
of the key.
"""
PLAIN = (
    bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device,
    torch.layout, torch.memory_format,
)  # fmt: skip
_OWNERS = frozenset(
    "torch _operator operator math builtins symshapes primops loopir aotgrad torchstrata".split()
)
"""Packages whose functions and classes are identified by their names."""
SEQUENCES = (tuple, list, torch.Size, torch.fx.immutable_collections.immutable_list)
SOURCES = (".py", ".h", ".c", ".cpp", ".jinja")


class Undescribed(Exception):
    """Raised for values that can't be described completely."""


def describe_graph(gm: torch.fx.GraphModule, number: Callable[[torch.fx.Node], int]) -> str:
    """The description of a graph. It has ``number(node)`` in the place of a node's user lines."""
    env = environment_of(gm)
    texts = [describe(gm.meta), "" if env is None else _environment_text(env)]
    for node in gm.graph.nodes:
        meta = {**node.meta, "stack_trace": number(node)}
        parts = map(describe, (node.target, node.args, node.kwargs, meta))
        texts.append(f"{node.name} {node.op} {' '.join(parts)}")
    return "\n".join(texts)


def environment_of(gm: torch.fx.GraphModule) -> symshapes.ShapeEnv | None:
    """The environment of a graph's symbolic sizes; None if all are fixed."""
    for node in gm.graph.find_nodes(op="placeholder"):
        for item in leaves(node.meta.get("val")):
            numbers = (
                (*item.shape, *item.stride()) if isinstance(item, symshapes.FakeTensor) else (item,)
            )
            found: Any = next(filter(symshapes.is_symbolic, numbers), None)
            if found is not None:
                return getattr(found.node, "shape_env", None)
    return None


def _environment_text(env: symshapes.ShapeEnv) -> str:
    try:
        return symshapes.describe_environment(env)
    except Unwritable as error:
        raise Undescribed(str(error)) from error


def describe_constants(constants: Mapping[str, torch.Tensor]) -> str:
    """The description of a graph's constants: the values of small ones, and which of them share a
    storage.
    """
    texts, storages = [], dict[int, int]()
    for name, tensor in constants.items():
        number = storages.setdefault(tensor.untyped_storage().data_ptr(), len(storages))
        values = tensor.tolist() if tensor.numel() <= READ_WHILE_COMPILING else ""
        texts.append(f"{name} {describe(tensor)} storage {number} {values}")
    return "\n".join(texts)


def devices_of(gm: torch.fx.GraphModule) -> set[str]:
    """The device types of a graph's values. The generators of other devices are not called, since a
    call may initialise a device's driver.
    """
    values = [node.meta.get("val") for node in gm.graph.nodes]
    return {item.device.type for item in leaves(values) if hasattr(item, "device")}


def describe(value: Any) -> str:
    """Describes everything about a value that compilation may read: values with equal descriptions
    compile alike. Raises Undescribed.
    """
    kind = type(value)
    if kind in PLAIN:
        return repr(value)
    for types, text in TEXTS:
        if isinstance(value, types):
            return text(value)
    if isinstance(value, primops.Prim):
        return f"prims.{value.name}"
    if is_dataclass(value) and not isinstance(value, type):
        described = [describe(getattr(value, field.name)) for field in fields(value)]
        return f"{kind.__name__}({', '.join(described)})"
    if callable(value):
        return _name_of(value)
    raise Undescribed(kind)


def _sequence_text(value: Sequence[Any]) -> str:
    if type(value) not in SEQUENCES and type(value).__module__ != "torch.return_types":
        raise Undescribed(type(value))
    return f"{type(value).__name__}({', '.join(map(describe, value))})"


def _mapping_text(value: Mapping[Any, Any]) -> str:
    items = sorted(f"{describe(key)}: {describe(item)}" for key, item in value.items())
    return f"{{{', '.join(items)}}}"


def _operator_text(value: OpOverload) -> str:
    return str(value) if value.namespace == "aten" else f"{value} {value._schema}"


TEXTS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    ((tuple, list), _sequence_text),
    (torch.Tensor, lambda value: _tensor_text(value)),
    ((torch.SymInt, torch.SymFloat, torch.SymBool), lambda value: _number_text(value)),
    (torch.fx.Node, lambda value: f"%{value.name}"),
    (OpOverload, _operator_text),
    (OpOverloadPacket, str),
    (Mapping, _mapping_text),
    ((set, frozenset), lambda value: f"{{{', '.join(sorted(map(describe, value)))}}}"),
    (slice, lambda value: f"slice{describe((value.start, value.stop, value.step))}"),
)
"""The functions that describe values by type; the first match is used."""


def _name_of(value: Any) -> str:
    """The name by which a function or class can be imported."""
    owner = getattr(value, "__module__", None) or "torch"
    # builtins and dispatchers have their importable name in ``__name__``
    for name in (getattr(value, "__qualname__", ""), getattr(value, "__name__", "")):
        if owner.partition(".")[0] in _OWNERS and _named(owner, name) is value:
            return f"{owner}.{name}"
    raise Undescribed(value)


def _named(owner: str, name: str) -> object:
    """The attribute of a module; None if it doesn't exist."""
    try:
        return operator.attrgetter(name)(sys.modules.get(owner))
    except AttributeError:
        return None


def _tensor_text(value: torch.Tensor) -> str:
    plain = (torch.Tensor, torch.nn.Parameter, symshapes.FakeTensor)
    if type(value) not in plain or value.layout is not torch.strided:
        raise Undescribed(type(value))
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    flags = (value.is_conj(), value.is_neg(), value.requires_grad)
    texts = ", ".join(map(_number_text, numbers))
    return f"{value.dtype} {value.device} {value.dim()} ({texts}) {flags}"


def _number_text(value: Any) -> str:
    """A size or another number, fixed or symbolic."""
    if not symshapes.is_symbolic(value):
        return repr(value)
    if symshapes.is_nested_int(value) or not isinstance(
        getattr(value.node, "shape_env", None), symshapes.ShapeEnv
    ):
        raise Undescribed("a size of another environment")
    return f"{type(value).__name__}({symshapes.format_expression(value.node.expr)})"


def describe_generators(
    codegens: Mapping[str, CodeGenerator], devices: Collection[str]
) -> tuple[object, ...]:
    """Describes the generators of some devices with everything on which they depend, and the source
    files of their packages.
    """
    used = {device: codegen for device, codegen in codegens.items() if device in devices}
    files = package_versions(
        "symshapes",
        "primops",
        "loopir",
        *(
            type(part).__module__
            for codegen in used.values()
            for part in getattr(codegen, "parts", (codegen,))
        ),
    )
    return (
        files,
        *((device, *_identity(codegen)) for device, codegen in used.items()),
    )


def _identity(codegen: CodeGenerator) -> Sequence[str]:
    found = codegen.identity() if isinstance(codegen, Reproducible) else None
    if found is None:
        raise Undescribed(type(codegen))
    kind = type(codegen)
    return (f"{kind.__module__}.{kind.__qualname__}", *found)


def process_state() -> tuple[object, ...]:
    """The state of the process that compilation may read."""
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
def package_versions(*modules: str) -> tuple[object, ...]:
    """The versions of Python, without bug fixes, and torch, and the source files of packages."""
    versions = "{}.{}".format(*sys.version_info), str(torch.__version__)
    return (*versions, *(_files(name) for name in dict.fromkeys(modules)))


def _files(module: str) -> tuple[str, str]:
    """Name and hash of the source files of the outermost package (with files) that contains a
    module, or of the module itself.
    """
    parts = module.split(".")
    origins = (_origin(".".join(parts[: depth + 1])) for depth in range(len(parts)))
    origin = next(filter(None, origins), None)
    if origin is None:
        raise Undescribed(module)
    digest = hashlib.sha256()
    for name in _source_files(origin.parent) if origin.name == "__init__.py" else [origin.name]:
        data = (origin.parent / name).read_bytes()
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return origin.parent.name, digest.hexdigest()


def _origin(module: str) -> Path | None:
    """The file of a module; None if it has none."""
    found = sys.modules.get(module)
    if found is not None:
        file = getattr(found, "__file__", None)
    else:
        spec = importlib.util.find_spec(module)
        file = None if spec is None else spec.origin
    return None if file is None else Path(file)


def _source_files(root: Path) -> list[str]:
    """The paths of a package's source files from its root on."""
    found = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    return sorted(path.removeprefix(f"{root}{os.sep}") for path in found if path.endswith(SOURCES))
