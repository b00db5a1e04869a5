"""What code, functions and classes contain, as text: in another process, an object of the same name
with the same content takes the place of one.

Places of files are no part of it, lines are. What torch, NumPy and these packages contain follows
from their versions; of their classes the names count, of their functions the code. The standard
library is described like a program, so Python's bug-fix versions share entries where its code is
equal.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), range, slice),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
_VERSIONED = frozenset({"builtins", "torch", "bytecode_dynamo", "symshapes", "numpy"})
"""Packages whose versions are part of every key."""
_OF_DECORATORS = _VERSIONED | {"typing_extensions"} | sys.stdlib_module_names
"""Packages whose functions stand in torch's namespaces."""
_WRAPPERS = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func", "attrname"),
}
_DESCRIPTORS = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
)
_UNREAD = ("__doc__", "__annotations__", "__dict__", "__weakref__", "__module__")
DEEPEST = 4
"""How far functions are followed through closures, defaults and attributes."""


@dataclass(slots=True)
class Contents:
    """Describes objects. ``codes`` has each code that is part of a description, by id."""

    codes: dict[int, types.CodeType] = field(default_factory=dict)
    _digests: dict[int, str] = field(default_factory=dict)
    _unknown: list[Any] = field(default_factory=list)

    def of(self, value: Any) -> str:
        """The hash of an object's content."""
        return _digest([self._text(value, 0)])

    def of_whole(self, value: Any) -> str | None:
        """The hash of a function, descriptor or constant; None if it holds other objects."""
        if isinstance(value, type | types.ModuleType):
            return None
        self._unknown.clear()
        content = self.of(value)
        return None if self._unknown else content

    def of_code(self, code: types.CodeType) -> str:
        """The hash of a code object with all that it contains."""
        known = self._digests.get(id(code))
        if known is None:
            self.codes[id(code)] = code
            known = self._digests[id(code)] = _digest(self._parts_of_code(code))
        return known

    def _parts_of_code(self, code: types.CodeType) -> Iterable[str]:
        for name in (
            "co_name co_qualname co_argcount co_posonlyargcount co_kwonlyargcount co_flags "
            "co_stacksize co_code co_names co_varnames co_cellvars co_freevars co_firstlineno "
            "co_linetable co_exceptiontable"
        ).split():
            yield repr(getattr(code, name))
        for constant in code.co_consts:
            yield self._constant(constant)

    def _constant(self, value: Any) -> str:
        if isinstance(value, types.CodeType):
            return f"code {self.of_code(value)}"
        if type(value) is tuple:
            return f"({', '.join(map(self._constant, value))})"
        if type(value) is frozenset:
            return f"frozenset({', '.join(sorted(map(self._constant, value)))})"
        return f"{type(value).__name__} {value!r}"

    def _text(self, value: Any, depth: int) -> str:
        kind = type(value)
        if kind in _PLAIN:
            return f"{kind.__name__} {value!r}"
        if depth > DEEPEST:
            return _name(kind)
        if kind is types.FunctionType:
            return self._function(value, depth)
        if kind in _WRAPPERS:
            parts = (getattr(value, name) for name in _WRAPPERS[kind])
            return f"{kind.__name__}({', '.join(self._text(part, depth + 1) for part in parts)})"
        if isinstance(value, type):
            return self._class(value, depth)
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, enum.Enum):
            return f"{_name(kind)}.{value.name} {self._text(value.value, depth + 1)}"
        if kind in (tuple, list, dict, set, frozenset):
            return self._container(value, depth)
        if kind not in _DESCRIPTORS:
            self._unknown.append(value)
        named = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
        return f"{_name(kind)} {named if isinstance(named, str) else ''}"

    def _container(self, value: Any, depth: int) -> str:
        kind = type(value)
        if kind is dict:
            items = [
                f"{self._text(key, depth + 1)}: {self._text(item, depth + 1)}"
                for key, item in value.items()
            ]
        else:
            items = [self._text(item, depth + 1) for item in value]
        if kind in (set, frozenset):
            items.sort()
        return f"{kind.__name__}({', '.join(items)})"

    def _function(self, function: types.FunctionType, depth: int) -> str:
        module = sys.modules.get(function.__module__ or "")
        is_at_home = module is not None and vars(module) is function.__globals__
        cells = [_contents_of(cell) for cell in function.__closure__ or ()]
        held = (function.__defaults__, function.__kwdefaults__, *cells, dict(vars(function)))
        return " ".join(
            (
                f"function {_name(function)} {is_at_home} {self.of_code(function.__code__)}",
                *(self._text(item, depth + 1) for item in held),
            )
        )

    def _class(self, cls: type, depth: int) -> str:
        if depth:
            return f"class {_name(cls)}"
        return " ".join(("class", *map(self._own_part, cls.__mro__)))

    def _own_part(self, cls: type) -> str:
        """What a class adds to its bases."""
        if _package(cls) in _VERSIONED:
            return _name(cls)
        held = (
            f"{name}={self._text(value, 1)}"
            for name, value in vars(cls).items()
            if name not in _UNREAD
        )
        return f"{_name(cls)} {_name(type(cls))} ({', '.join(held)})"


def patches() -> str | None:
    """A function of the program in the place of one of torch's, by name."""
    for owner in _PATCHED:
        for name, value in vars(owner).items():
            if type(value) is types.FunctionType and not _is_torchs(value):
                return f"{owner.__name__}.{name}"
    return None


_PATCHED: tuple[Any, ...] = (
    torch, torch.Tensor, torch._C.TensorBase, torch.nn.functional, torch.nn.Module,
    torch.nn.Parameter,
)  # fmt: skip


def _is_torchs(function: types.FunctionType) -> bool:
    home = function.__globals__.get("__name__") or ""
    return home.partition(".")[0] in _OF_DECORATORS


def _contents_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return ...


def _package(value: Any) -> str:
    return str(getattr(value, "__module__", None) or "").partition(".")[0]


def _name(value: Any) -> str:
    return f"{value.__module__}:{value.__qualname__}"


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="backslashreplace")
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()
