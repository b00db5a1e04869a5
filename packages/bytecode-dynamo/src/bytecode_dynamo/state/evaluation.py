"""How control leaves a frame: it returns, or a generator is suspended."""

from __future__ import annotations

from dataclasses import dataclass

from .tracker import VariableTracker


class FrameExit(Exception):
    """A frame returns or yields a value."""

    def __init__(self, value: VariableTracker, yielded: bool = False) -> None:
        super().__init__()
        self.value = value
        self.yielded = yielded


@dataclass(slots=True)
class Suspended:
    """Where a generator stands."""

    index: int
    stack: tuple[VariableTracker, ...]
    slots: dict[str, VariableTracker]
    handled: tuple[VariableTracker, ...]
    handles: bool
    """Whether closing it may have effects."""
