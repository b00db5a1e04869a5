"""Finds what makes a compiled program wrong: the layer, the decision, the nodes, a small repro."""

from typing import TYPE_CHECKING

from symshapes.lazy import lazy_names

if TYPE_CHECKING:
    from .active import current
    from .evaluate import copy_graph
    from .locate import Finding
    from .replaying import replay
    from .sampling import sampled
    from .searching import NothingFound, bisect, search_command
    from .session import Session

__all__ = [
    "Finding", "NothingFound", "Session", "bisect", "copy_graph", "current", "replay", "sampled",
    "search_command",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
