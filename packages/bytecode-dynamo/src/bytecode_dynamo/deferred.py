"""Calls that are made after the graph, in the order in which the program made them: hooks on
inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .context import Context
    from .variables.base import VariableTracker

_CALLS = object()


class Deferred:
    """The calls so far, kept in the effects so that going back undoes them. Building the tracker of
    a call makes it.
    """

    def add(self, ctx: Context, call: VariableTracker) -> None:
        """Make a call after the graph."""
        ctx.effects.write(_CALLS, (*ctx.effects.read(_CALLS, ()), call))

    def remove(self, ctx: Context, call: VariableTracker) -> None:
        """Take it back."""
        ctx.effects.write(
            _CALLS, tuple(other for other in ctx.effects.read(_CALLS, ()) if other is not call)
        )

    def calls(self, ctx: Context) -> tuple[VariableTracker, ...]:
        """What is to be done after the graph."""
        return ctx.effects.read(_CALLS, ())
