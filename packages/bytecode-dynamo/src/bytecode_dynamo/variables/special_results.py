"""Results of special methods, some of which the interpreter refuses or converts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, Kwargs, Variable
from .constant import ConstantVariable

Accepts = Callable[[type, Any], bool]


def _exactly(cls: type) -> Accepts:
    return lambda kind, value: kind is cls


ACCEPTED: dict[str, Accepts] = {
    **dict.fromkeys(
        ("__len__", "__length_hint__"),
        lambda kind, value: kind is int and 0 <= (value or 0) <= sys.maxsize,
    ),
    **dict.fromkeys(("__int__", "__index__"), _exactly(int)),
    **dict.fromkeys(("__str__", "__repr__", "__format__", "__fspath__"), _exactly(str)),
    "__bool__": _exactly(bool),
    "__float__": _exactly(float),
    "__complex__": _exactly(complex),
    "__bytes__": _exactly(bytes),
    "__hash__": lambda kind, value: kind in (int, bool),
    "__iter__": lambda kind, value: hasattr(kind, "__next__"),
    "__init__": _exactly(type(None)),
}
"""Whether the interpreter accepts a result of a type and a value (None: unknown) as it is."""


def accepted(name: str, result: VariableTracker) -> VariableTracker:
    """The result of a special method called by the interpreter; breaks where eager mode refuses or
    converts it.
    """
    accepts = ACCEPTED.get(name)
    value = result.value if isinstance(result, ConstantVariable) else None
    if accepts is not None and not accepts(result.python_type(), value):
        raise GraphBreak("BD007", f"{name} that gives {result.describe()}")
    return result


@dataclass(frozen=True, slots=True, eq=False)
class SpecialMethodVariable(Variable):
    """A bound special method, called as the interpreter does."""

    method: VariableTracker
    name: str

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return accepted(self.name, self.method.call(ctx, args, kwargs))
