"""What keeps entries of frames: an attribute ``frames`` of a backend (contract B11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from torch.fx import GraphModule

Json: TypeAlias = Any
Frames: TypeAlias = "Callable[[Mapping[str, str]], FrameSlot | None]"
"""Takes what names a frame and its arguments; None if nothing is kept under these settings."""


class FrameSlot(Protocol):
    """The place of one frame."""

    def get(self) -> Json | None:
        """What is there: a frame, or why it was refused."""
        ...

    def hold(self) -> bool:
        """Makes other processes wait for what this one puts there, until ``close``. Whether this
        one has waited.
        """
        ...

    def close(self) -> None:
        """Lets the others go on."""
        ...

    def compile(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Does what the backend does, and notes how to do it again from the cache."""
        ...

    def put(self, frame: Json) -> None:
        """Stores a frame with the graph compiled before, or the reason that this is impossible."""
        ...

    def revive(self, frame: Json) -> tuple[Callable[..., Any], Callable[[], GraphModule]] | None:
        """The compiled graph of a frame, and a function that gives the captured one; None if it is
        gone.
        """
        ...
