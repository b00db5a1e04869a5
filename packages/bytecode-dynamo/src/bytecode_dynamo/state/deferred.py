"""Calls that are made after the graph, in the order in which the program made them: hooks on
inputs.
"""

from __future__ import annotations

from .effects import Effects
from .tracker import VariableTracker

_CALLS = object()


class Deferred:
    """The calls so far, kept in the effects so that going back undoes them. Building the tracker of
    a call makes it.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects

    def add(self, call: VariableTracker) -> None:
        """Make a call after the graph."""
        self._effects.write(_CALLS, (*self.calls(), call))

    def remove(self, call: VariableTracker) -> None:
        """Take it back."""
        self._effects.write(_CALLS, tuple(other for other in self.calls() if other is not call))

    def calls(self) -> tuple[VariableTracker, ...]:
        """What is to be done after the graph."""
        return self._effects.read(_CALLS, ())
