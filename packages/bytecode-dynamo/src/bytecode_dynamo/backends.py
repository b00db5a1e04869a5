"""Backends by name: the built-in ones, and those of installed packages (``GROUPS``)."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import torch
from symshapes.suggestion import did_you_mean

from bytecode_dynamo.capture.policy import Backend
from bytecode_dynamo.graph.text import format_captured

from .errors import UserError

GROUPS = ("torchstrata.backends", "torch_dynamo_backends")
"""The entry point groups that offer backends: ours, and the one that packages for torch.compile
use.
"""


def eager(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Runs the graph as it is."""
    return gm.forward


def print_backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Prints the graph, then runs it as it is."""
    print(format_captured(gm, strict=False))
    return gm.forward


_BACKENDS: dict[str, Backend] = {"eager": eager, "print": print_backend}


def lookup_backend(backend: str | Backend) -> Backend:
    """A backend by name (built-in, or an entry point of one of GROUPS); a callable is itself.

    Raises UserError for an unknown name, for one that two packages offer, for an entry point that
    can't be loaded, and for something that is neither.
    """
    if callable(backend):
        return backend
    if not isinstance(backend, str):
        raise UserError(f"backend must be a name or a callable, not {type(backend).__name__}")
    known = _BACKENDS.get(backend)
    if known is not None:
        return known
    offered = {point.value: point for point in _points() if point.name == backend}
    if not offered:
        raise UserError(
            f"no backend is called {backend!r}; {did_you_mean(backend, list_backends())}known: "
            f"{', '.join(list_backends())}. Or pass a callable (gm, example_inputs) -> callable"
        )
    if len(offered) > 1:
        raise UserError(
            f"{len(offered)} installed backends are called {backend!r}: {', '.join(offered)}; pass "
            f"the callable"
        )
    ((value, point),) = offered.items()
    try:
        loaded: Any = point.load()
    except Exception as error:
        raise UserError(f"backend {backend!r} ({value}) can't be loaded: {error}") from error
    if not isinstance(loaded, Callable):
        raise UserError(
            f"backend {backend!r} ({value}) is a {type(loaded).__name__}, which can't be called"
        )
    return loaded


def register_backend(backend: Backend, name: str | None = None) -> Backend:
    """Lets ``name`` (default: the callable's own) stand for a backend; returns the backend.

    Raises UserError for a name that stands for another one, and for what can't be called.
    """
    if not callable(backend):
        raise UserError(f"a backend is a callable, not {type(backend).__name__}")
    chosen = name or getattr(backend, "__name__", None)
    if not isinstance(chosen, str):
        raise UserError(f"{backend!r} has no __name__: pass the name")
    if _BACKENDS.get(chosen, backend) is not backend:
        raise UserError(f"another backend is called {chosen!r}: {_BACKENDS[chosen]!r}")
    _BACKENDS[chosen] = backend
    return backend


def list_backends() -> list[str]:
    """The names that ``lookup_backend`` accepts."""
    return sorted({*_BACKENDS, *(point.name for point in _points())})


def _points() -> list[importlib.metadata.EntryPoint]:
    return [point for group in GROUPS for point in importlib.metadata.entry_points(group=group)]
