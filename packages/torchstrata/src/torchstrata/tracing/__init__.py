"""Traces: what a process compiles, written to a directory that ``torchstrata.report`` reads."""

from typing import TYPE_CHECKING

from symshapes.lazy import lazy_names

if TYPE_CHECKING:
    from .active import current
    from .graphs import GraphTrace
    from .recording import begin_for_process, trace
    from .session import Session

__all__ = ["GraphTrace", "Session", "begin_for_process", "current", "trace"]

__getattr__, __dir__ = lazy_names(__name__)
