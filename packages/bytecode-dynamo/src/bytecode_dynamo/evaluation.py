"""How control leaves a frame."""

from __future__ import annotations

from .variables.base import VariableTracker


class FrameExit(Exception):
    """A frame returns or yields a value."""

    def __init__(self, value: VariableTracker, yielded: bool = False) -> None:
        super().__init__()
        self.value = value
        self.yielded = yielded
