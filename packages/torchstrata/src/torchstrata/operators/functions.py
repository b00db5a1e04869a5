"""What a function of the program leads to, as text: code, defaults, closures, and all that its
globals name.

Equal texts mean that both functions do the same. Torch, the standard library and these packages are
not followed, for their versions are part of every key; a module of the standard library whose
results depend on more than its arguments has no description. Places of files are no part of a text.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import hashlib
import logging
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import loopir
import torch
from bytecode_dynamo import Contents
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

from .namespaces import OURS, PURE, Namespaces, package_of

_REFLECTIVE = frozenset(
    "__import__ compile delattr eval exec globals input locals open setattr vars".split()
)
_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented)),
    *(range, slice, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
_WRAPPERS = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func", "attrname"),
    functools.partial: ("func", "args", "keywords"),
    functools._lru_cache_wrapper: ("__wrapped__",),
    types.MethodType: ("__func__", "__self__"),
}
_UNNAMED = (*_WRAPPERS, types.ModuleType, OpOverload, OpOverloadPacket)
_NATIVE = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType),
)
_UNREAD = frozenset(
    "__doc__ __annotations__ __annotate_func__ __annotations_cache__ __dict__ __weakref__ "
    "__module__ __firstlineno__ __dataclass_fields__ __dataclass_params__ "
    "_autograd_function_id".split()
)
"""Parts of classes that nothing calls, or that count the classes of this process."""
_OF_THIS_PROCESS = frozenset({"checked"})
"""Variables of torch's own closures that tell whether something was called before."""


@dataclass(slots=True)
class Reached:
    """The values that functions lead to. Each has a number, by which others name it, and one text.

    ``operators`` are those that were named, in the order in which they were found.
    """

    operators: dict[OpOverload, None] = field(default_factory=dict)
    _contents: Contents = field(default_factory=Contents)
    _numbers: dict[int, int] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)
    _pending: list[tuple[int, Callable[[Any], str], Any]] = field(default_factory=list)
    _namespaces: Namespaces = field(default_factory=Namespaces)

    def finish(self) -> list[str]:
        """The texts of all that was reached since the last call. Raises Undescribed."""
        texts, held = list[str](), list[tuple[str, Any]]()
        while self._pending or held or (held := self._namespaces.look_up()):
            texts.extend(f"{name} = {self.text(value)}" for name, value in held)
            held = []
            while self._pending:
                number, write, value = self._pending.pop(0)
                texts.append(f"#{number} = {write(value)}")
        return texts

    def text(self, value: Any) -> str:
        """The text of a value, or its number. Raises Undescribed."""
        kind = type(value)
        if kind in _PLAIN:
            return f"{kind.__name__} {value!r}"
        named = self._by_name(value)
        if named is not None:
            return named
        if kind is types.FunctionType:
            return self._numbered(value, self._function)
        if kind is tuple:
            return f"({', '.join(map(self.text, value))})"
        if kind in (list, dict):
            return self._numbered(value, self._container)
        if kind in (set, frozenset):
            return f"{kind.__name__}({', '.join(sorted(map(self._plain, value)))})"
        if kind in _WRAPPERS:
            parts = (self.text(getattr(value, name)) for name in _WRAPPERS[kind])
            return f"{kind.__name__}({', '.join(parts)})"
        if isinstance(value, type):
            return self._numbered(value, self._class)
        return self._of_instance(value)

    def _of_instance(self, value: Any) -> str:
        if isinstance(value, OpOverload | OpOverloadPacket | CustomOpDef):
            return " ".join(map(self._operator, overloads(value)))
        if isinstance(value, types.ModuleType):  # torch.ops and its namespaces are some, too
            return self._namespaces.reach(value)
        if isinstance(value, enum.Enum):
            return f"{self.text(type(value))}.{value.name} {self.text(value.value)}"
        if isinstance(value, logging.Logger):
            return "logger"
        if dataclasses.is_dataclass(value):
            return self._numbered(value, self._fields)
        raise loopir.Undescribed(f"{type(value)} which an operator reads")

    def _plain(self, value: Any) -> str:
        if type(value) not in _PLAIN:
            raise loopir.Undescribed(f"a set of {type(value)} which an operator reads")
        return self.text(value)

    def _numbered(self, value: Any, write: Callable[[Any], str]) -> str:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._numbers)
            self._alive.append(value)  # its id is not given to another
            self._pending.append((self._numbers[id(value)], write, value))
        return f"#{self._numbers[id(value)]}"

    def _by_name(self, value: Any) -> str | None:
        """The name of what torch, the standard library or these packages hold under it."""
        name: Any = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        home = getattr(value, "__module__", None) or "torch"
        is_named = isinstance(name, str) and isinstance(home, str)
        if not is_named or isinstance(value, _UNNAMED):
            return None
        if package_of(home) in OURS | PURE and _found(home, name) is value:
            return f"{home}.{name}"
        if type(value) in _NATIVE:
            owner = getattr(value, "__objclass__", None)
            if owner is not None:
                return f"{self.text(owner)}.{name}"
            with_torch = _found("torch", getattr(value, "__name__", ""))
            return loopir.describe(value) if with_torch is not value else f"torch.{name}"
        return None

    def _function(self, function: types.FunctionType) -> str:
        is_torchs = package_of(function.__globals__.get("__name__")) in OURS
        parts = (function.__defaults__, function.__kwdefaults__, dict(vars(function)))
        texts = [self._contents.of_code(function.__code__), *map(self.text, parts)]
        texts.extend(
            f"{name}={self.text(value)}"
            for name, value in closure_of(function).items()
            if not (is_torchs and name in _OF_THIS_PROCESS)
        )
        if not is_torchs:
            texts.extend(self._globals(function))
        return f"function {' '.join(texts)}"

    def _globals(self, function: types.FunctionType) -> Iterator[str]:
        for name in self._namespaces.globals_of(function):
            if name in function.__globals__:
                yield f"{name}={self.text(function.__globals__[name])}"
            elif name in _REFLECTIVE:
                raise loopir.Undescribed(f"{name}, which an operator calls,")
            elif hasattr(builtins, name):
                yield f"{name} of Python"

    def _operator(self, op: OpOverload) -> str:
        if op.namespace != "aten":
            self.operators.setdefault(op)
        return f"operator {op}"

    def _container(self, value: list[Any] | dict[Any, Any]) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(self.text, value))}]"
        items = (f"{self.text(key)}: {self.text(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"

    def _fields(self, value: Any) -> str:
        held = (getattr(value, item.name, None) for item in dataclasses.fields(value))
        return f"{self.text(type(value))}({', '.join(map(self.text, held))})"

    def _class(self, cls: type) -> str:
        held = {name: value for name, value in vars(cls).items() if name not in _UNREAD}
        if issubclass(cls, enum.Enum):
            methods = (types.FunctionType, staticmethod, classmethod, property)
            held = {name: value for name, value in held.items() if isinstance(value, methods)}
            held |= {name: member.value for name, member in cls.__members__.items()}
        bases = " ".join(map(self.text, (type(cls), *cls.__mro__)))
        parts = ", ".join(f"{name}={self.text(value)}" for name, value in held.items())
        return f"class {cls.__qualname__} {bases} ({parts})"


def overloads(target: Any) -> Iterator[OpOverload]:
    """The overloads of an operator."""
    if isinstance(target, CustomOpDef):
        target = target._opoverload
    if isinstance(target, OpOverload):
        yield target
    else:
        yield from (getattr(target, name) for name in sorted(target.overloads()))


def closure_of(function: types.FunctionType) -> dict[str, Any]:
    """The values of a closure; ``...`` for a variable without one."""
    found = dict[str, Any]()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            found[name] = ...
    return found


def digest(texts: list[str]) -> str:
    """The hash of texts."""
    found = hashlib.sha256()
    for text in texts:
        data = text.encode(errors="backslashreplace")
        found.update(f"{len(data)}:".encode() + data)
    return found.hexdigest()


def _found(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
