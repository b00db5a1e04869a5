"""Call targets of captured graphs that are neither torch functions nor tensor methods."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule


class OpaqueCall:
    """A callable as a call target: its meaning is what calling it does, on real tensors as on those
    of a tracer.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, graphs: tuple[GraphModule, ...] = ()
    ) -> None:
        self.function = function
        self.graphs = graphs
        """The captured functions that it calls, for reading."""
        self.branches = False
        """Whether the data decide which of the functions run, and so what has a gradient."""
        self.__name__ = name
        self.__qualname__ = name
        self.__module__ = "bytecode_dynamo"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self.__name__}>"


def as_target(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or an ``OpaqueCall`` where FX could not write its name."""
    name = getattr(function, "__name__", type(function).__name__)
    plain = (
        isinstance(function, (types.FunctionType, types.BuiltinFunctionType))
        and name.isidentifier()
    )
    home = getattr(function, "__module__", None) or ""
    if plain and not home.startswith("torch"):
        return function
    return OpaqueCall(function, name.strip("<>"))
