"""The graph backend that ``compile()`` is asked for, by name or as a callable, and the default."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import bytecode_dynamo
import torch
from symshapes.suggestion import did_you_mean

from .errors import UsageError
from .stages import aot_eager

Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]

log = logging.getLogger("torchstrata")
WHOLE_STACK = ("torchstrata", "inductor")
DEBUGGING = ("aot_eager", "eager", "print")
"""Backends that generate no code; programs change to one of them to see where a fault is."""
_DEFAULT = "inductor"
_default: str | Backend = _DEFAULT


def set_default_backend(backend: str | Backend | None) -> None:
    """Chooses what ``compile(backend=None)`` means from now on, until another choice; None chooses
    the whole stack again. Raises UsageError for anything but a name or a callable.
    """
    global _default
    if backend is not None and not isinstance(backend, str) and not callable(backend):
        raise UsageError(f"backend must be a name or a callable, not {type(backend).__name__}")
    _default = _DEFAULT if backend is None else backend


def get_default_backend() -> str | Backend:
    """What ``compile(backend=None)`` means: "inductor", the whole stack, unless one was chosen."""
    return _default


def list_backends() -> list[str]:
    """The names that ``compile(backend=...)`` takes, those of installed packages among them."""
    return sorted({*WHOLE_STACK, *DEBUGGING, *bytecode_dynamo.list_backends()})


@dataclass(frozen=True)
class ConfiguredBackend:
    """A backend that gets ``mode`` and ``options`` with each graph, as torch.compile passes them.

    Equal ones share what they compiled (``bytecode_dynamo.optimize``).
    """

    backend: Any
    arguments: dict[str, Any]

    @property
    def __name__(self) -> str:
        return getattr(self.backend, "__name__", type(self.backend).__name__)

    @property
    def symbolic_floats(self) -> bool:
        """What the backend says of itself (``bytecode_dynamo.optimize``)."""
        return bool(getattr(self.backend, "symbolic_floats", True))

    @property
    def host_effects(self) -> bool:
        """What the backend says of itself (``bytecode_dynamo.optimize``)."""
        return bool(getattr(self.backend, "host_effects", True))

    @property
    def precompile(self) -> Any:
        """The backend's (contract B10), or None."""
        return getattr(self.backend, "precompile", None)

    @property
    def plain(self) -> Any:
        """The backend's (contract B9), or None."""
        return getattr(self.backend, "plain", None)

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return self.backend(graph, inputs, **self.arguments)


def find_backend(
    backend: str | Backend, mode: str | None, options: Mapping[str, Any] | None
) -> Backend:
    """The backend of a name, or the callable, with ``mode`` and ``options`` for each graph.

    The mode "default" is not passed. Raises UsageError for an unknown name, and for a callable that
    does not take what is given.
    """
    found = aot_eager if backend == "aot_eager" else _lookup(backend)
    arguments: dict[str, Any] = {} if mode in (None, "default") else {"mode": mode}
    if options:
        arguments["options"] = dict(options)
    if not arguments:
        return found
    if isinstance(backend, str) and backend in DEBUGGING:
        ignored = sorted({*arguments, *(options or {})} - {"options", "fallback"})
        if ignored:
            log.warning("the backend %r ignores %s", backend, ", ".join(ignored))
        return found
    _check_takes(found, arguments)
    return ConfiguredBackend(found, arguments)


def _lookup(backend: str | Backend) -> Backend:
    if callable(backend):
        return backend
    if not isinstance(backend, str):
        raise UsageError(f"backend must be a name or a callable, not {type(backend).__name__}")
    known = list_backends()
    if backend not in known:
        raise UsageError(
            f"no backend is called {backend!r}; {did_you_mean(backend, known)}known: "
            f"{', '.join(known)}. Or pass a callable (gm, example_inputs) -> callable"
        )
    try:
        return bytecode_dynamo.lookup_backend(backend)
    except bytecode_dynamo.UserError as error:
        raise UsageError(str(error)) from error


def _check_takes(backend: Backend, arguments: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(backend)
    except (TypeError, ValueError):
        return  # written in C: the call says what is wrong
    try:
        signature.bind(None, None, **arguments)
    except TypeError as error:
        name = getattr(backend, "__name__", type(backend).__name__)
        raise UsageError(
            f"the backend {name} is called as {name}(graph, example_inputs, "
            f"{', '.join(f'{one}=...' for one in arguments)}): {error}"
        ) from None
