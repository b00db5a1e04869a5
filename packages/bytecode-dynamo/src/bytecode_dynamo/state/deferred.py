"""Calls deferred until after the graph, in program order: hooks on inputs."""

from __future__ import annotations

from .effects import Effects
from .tracker import VariableTracker

_CALLS = object()


class Deferred:
    """The deferred calls, stored in the effects so that rollback undoes them.

    Building the tracker of a call makes it.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects

    def add(self, call: VariableTracker) -> None:
        """Defer a call."""
        self._effects.write(_CALLS, (*self.calls(), call))

    def remove(self, call: VariableTracker) -> None:
        """Withdraw a deferred call."""
        self._effects.write(_CALLS, tuple(other for other in self.calls() if other is not call))

    def calls(self) -> tuple[VariableTracker, ...]:
        """The deferred calls."""
        return self._effects.read(_CALLS, ())
