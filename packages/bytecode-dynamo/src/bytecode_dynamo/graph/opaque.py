"""Call targets of captured graphs that are neither torch functions nor tensor methods."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule


class OpaqueCall:
    """A callable as a call target, meaningful on real tensors and on a tracer's."""

    def __init__(
        self, function: Callable[..., Any], name: str, graphs: tuple[GraphModule, ...] = ()
    ) -> None:
        self.function = function
        self.graphs = graphs
        """The captured graphs that it calls, for inspection."""
        self.branches = False
        """Whether data decides which graphs run, and so which inputs have gradients."""
        self.__name__ = name
        self.__qualname__ = name
        self.__module__ = "bytecode_dynamo"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self.__name__}>"


def as_target(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or an ``OpaqueCall`` if FX can't print its name."""
    name = getattr(function, "__name__", type(function).__name__)
    plain = (
        isinstance(function, (types.FunctionType, types.BuiltinFunctionType))
        and name.isidentifier()
    )
    home = getattr(function, "__module__", None) or ""
    if plain and not home.startswith("torch"):
        return function
    return OpaqueCall(function, name.strip("<>"))
