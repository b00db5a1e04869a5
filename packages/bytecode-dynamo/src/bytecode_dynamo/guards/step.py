"""The elementary steps of a source: attribute, item, call.

Each declares its text, how to evaluate it on a value, and the instructions for it; ``load`` appends
the instructions that push the value to start from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from bytecode_dynamo.bytecode import Emitter

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
