"""Backends by name: the built-in ones, and entry points of the group ``torch_dynamo_backends``."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import torch

from bytecode_dynamo.capture.policy import Backend
from bytecode_dynamo.graph.show import format_graph

from .errors import UserError

GROUP = "torch_dynamo_backends"


def eager(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Runs the graph as it is."""
    return gm.forward


def print_backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Prints the graph, then runs it as it is."""
    print(format_graph(gm))
    return gm.forward


_BACKENDS: dict[str, Backend] = {"eager": eager, "print": print_backend}


def lookup_backend(backend: str | Backend) -> Backend:
    """A backend by name (built-in, or an entry point of the group ``torch_dynamo_backends``); a
    callable is itself.

    Raises UserError for an unknown name, for an entry point that can't be loaded, and for something
    that is neither.
    """
    if callable(backend):
        return backend
    if not isinstance(backend, str):
        raise UserError(f"backend must be a name or a callable, not {type(backend).__name__}")
    known = _BACKENDS.get(backend)
    if known is not None:
        return known
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if backend not in points:
        names = ", ".join(sorted({*_BACKENDS, *points}))
        raise UserError(
            f"no backend is called {backend!r}; known: {names}. Or pass a callable (gm, "
            f"example_inputs) -> callable"
        )
    try:
        loaded: Any = points[backend].load()
    except Exception as error:
        raise UserError(
            f"backend {backend!r} ({points[backend].value}) can't be loaded: {error}"
        ) from error
    if not isinstance(loaded, Callable):
        raise UserError(
            f"backend {backend!r} ({points[backend].value}) is a {type(loaded).__name__}, which "
            f"can't be called"
        )
    return loaded


def list_backends() -> list[str]:
    """The names that ``lookup_backend`` accepts."""
    return sorted(
        {*_BACKENDS, *(point.name for point in importlib.metadata.entry_points(group=GROUP))}
    )
