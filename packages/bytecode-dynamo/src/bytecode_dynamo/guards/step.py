"""The elementary steps of a source: attribute, item, call.

Each declares its text, how to evaluate it on a value, and the instructions for it; ``load`` appends
the instructions that push the value to start from.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from bytecode_dynamo.bytecode import Emitter
from bytecode_dynamo.marker import Marker

PLAIN_EQUALITY = frozenset(
    kind.__eq__ for kind in (int, float, str, bytes, tuple, complex, frozenset, type(None), type)
)
_NAMED = (FunctionType, BuiltinFunctionType, ModuleType)


def format_constant(value: Any) -> str:
    """The text of a constant; other objects are not passed to ``repr``, which may run user code or
    be long.
    """
    if type(value).__eq__ in PLAIN_EQUALITY or isinstance(value, _NAMED):
        return repr(value)
    return f"<{type(value).__name__} {id(value):x}>"


SHOWN, DEPTH, BITS = 100, 3, 1024
_PLAIN = (
    *(int, float, complex, bool, str, bytes, range, slice, type(None), type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
    torch._C.DispatchKeySet,
)


def describe(value: Any) -> str:
    """A short text of a value for messages: constants, names of classes and functions, and ``a
    Linear`` for other objects, whose ``repr`` may run user code or be long.
    """
    text = _text(value, DEPTH)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _text(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is Marker:
        return value.name
    if kind is int and value.bit_length() > BITS:
        return f"an int of {value.bit_length()} bits"
    if kind in _PLAIN:
        return repr(value[:SHOWN] if kind in (str, bytes) else value)
    if issubclass(kind, ModuleType):
        return value.__name__
    if issubclass(kind, (type, *_NAMED)):
        return _qualified(value)
    if issubclass(kind, enum.Enum):
        return f"{kind.__name__}.{value.name}"
    return _contents(value, depth) if kind in _BRACKETS else f"a {kind.__name__}"


def _qualified(value: Any) -> str:
    """The name of a class or function; torch's functions with their module."""
    name = value.__qualname__.rpartition("<locals>.")[2]
    module = getattr(value, "__module__", None) or ""
    is_function = not issubclass(type(value), type)
    return f"{module}.{name}" if is_function and module.partition(".")[0] == "torch" else name


_BRACKETS = {tuple: "()", list: "[]", dict: "{}", set: "{}", frozenset: "{}"}


def _contents(value: Any, depth: int) -> str:
    """A container with its items, as far as they are shown."""
    left, right = _BRACKETS[type(value)]
    if not value:
        return f"{left}{right}" if left != "{" or type(value) is dict else "set()"
    if not depth:
        return f"{left}...{right}"
    items = itertools.islice(value, SHOWN)
    texts = [_text(item, depth - 1) for item in items]
    if type(value) is dict:
        held = itertools.islice(value.values(), SHOWN)
        texts = [f"{key}: {_text(item, depth - 1)}" for key, item in zip(texts, held)]
    comma = "," if type(value) is tuple and len(value) == 1 else ""
    return f"{left}{', '.join(texts)}{comma}{right}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """``value.name``."""

    name: str

    def text(self, base: str) -> str:
        if self.name.isidentifier():
            return f"{base}.{self.name}"
        return f"getattr({base}, {self.name!r})"

    def take(self, value: Any) -> Any:
        return getattr(value, self.name)

    def emit(self, emitter: Emitter, load: Callable[[], None]) -> None:
        load()
        emitter.load_attr(self.name)


@dataclass(frozen=True, slots=True)
class Item:
    """``value[key]``."""

    key: Any

    def text(self, base: str) -> str:
        return f"{base}[{format_constant(self.key)}]"

    def take(self, value: Any) -> Any:
        return value[self.key]

    def emit(self, emitter: Emitter, load: Callable[[], None]) -> None:
        load()
        emitter.load_item(self.key)


@dataclass(frozen=True, slots=True)
class Call:
    """``function(value, *arguments)``; ``template`` is its text with the value's as ``{}``."""

    function: Callable[..., Any]
    template: str
    arguments: tuple[Any, ...] = ()

    def text(self, base: str) -> str:
        return self.template.replace("{}", base, 1)

    def take(self, value: Any) -> Any:
        return self.function(value, *self.arguments)

    def emit(self, emitter: Emitter, load: Callable[[], None]) -> None:
        emitter.load_callee_const(self.function)
        load()
        for argument in self.arguments:
            emitter.load_const(argument)
        emitter.call(1 + len(self.arguments))


Step = Attribute | Item | Call
