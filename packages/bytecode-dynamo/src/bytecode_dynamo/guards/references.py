"""Objects of the process in texts of guards.

``named('torch.nn:Linear')`` is a module, class, function or enum member, found by module and
qualified name among the modules that are loaded; ``named('torch.ops.aten:add.Tensor')`` is an
operator. ``live('a Linear', 0)`` is any other object: a
reader has it only if the caller hands it over. The numbers tell the objects of one text apart.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from symshapes.text.names import find_target, format_target
from symshapes.text.values import MISSING
from torch._ops import OpOverload, OpOverloadPacket

from .records import GuardRecord, ShapeGuards
from .step import describe

_OPERATORS = "torch.ops."
_FUNCTIONS = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
)


@dataclass(frozen=True, slots=True)
class Named:
    """A name of a text that stands for nothing in this process."""

    name: str

    def __str__(self) -> str:
        return f"named({self.name!r})"


@dataclass(frozen=True, slots=True)
class Live:
    """A live object of a text that the caller has not handed over."""

    what: str
    number: int

    def __str__(self) -> str:
        return f"live({self.what!r}, {self.number})"


@dataclass(frozen=True, slots=True, eq=False)
class OpenRecord(GuardRecord):
    """A guard with ``Named`` or ``Live`` in it: it can be printed, but not compiled."""

    missing: tuple[Named | Live, ...]


@dataclass(frozen=True, slots=True)
class OpenShapes(ShapeGuards):
    """The same of conditions on sizes."""

    missing: tuple[Named | Live, ...] = ()


def find_named(name: str) -> Any:
    """The object of ``module:qualified.name``, else ``MISSING``; imports and calls nothing."""
    module, _, path = name.partition(":")
    if f"{module}.".startswith(_OPERATORS):
        return _find_operator(module.removeprefix(_OPERATORS), path)
    found: Any = sys.modules.get(module)
    for part in path.split(".") if path else ():
        if issubclass(type(found), enum.EnumMeta) and part in found._member_map_:
            found = found._member_map_[part]
        elif issubclass(type(found), types.ModuleType | type):
            found = vars(found).get(part)
        else:
            return MISSING
    return MISSING if found is None else found


def _find_operator(namespace: str, name: str) -> Any:
    if name:
        found = find_target(f"ops.{namespace}.{name}")
        return MISSING if found is None else found
    return torch.ops if f"{namespace}." == _OPERATORS else getattr(torch.ops, namespace)


def _candidates(value: Any) -> Iterator[str]:
    kind = type(value)
    if issubclass(kind, OpOverload | OpOverloadPacket):
        namespace, name = format_target(value).split(".", 2)[1:]
        yield f"{_OPERATORS}{namespace}:{name}"
    elif issubclass(kind, types.ModuleType):
        yield str(value.__name__)
    elif issubclass(kind, enum.Enum):
        yield f"{kind.__module__}:{kind.__qualname__}.{value._name_}"
    elif issubclass(kind, (type, *_FUNCTIONS)):
        owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
        module = getattr(value, "__module__", None) or getattr(owner, "__module__", "torch")
        yield f"{module}:{value.__qualname__}"
        yield f"{module}:{value.__name__}"
        yield f"torch:{value.__name__}"
        yield from (f"types:{name}" for name, held in vars(types).items() if held is value)


@dataclass(slots=True)
class References:
    """Writes objects, and numbers the live ones in order."""

    numbers: dict[Any, int] = field(default_factory=dict)

    def format(self, value: Any) -> str:
        """A class, function or other object as text."""
        name = next((name for name in _candidates(value) if find_named(name) is value), None)
        return str(Named(name)) if name else self.live(value, _describe(value))

    def live(self, value: Any, what: str) -> str:
        """An object as one that only this process has."""
        key = ("read", value.number) if type(value) is Live else id(value)
        return str(Live(what, self.numbers.setdefault(key, len(self.numbers))))


def _describe(value: Any) -> str:
    """``describe``, but of containers only the class: their contents may change."""
    kind = type(value)
    is_container = issubclass(kind, dict | list | tuple | set | frozenset)
    return f"a {kind.__name__}" if is_container else describe(value)
