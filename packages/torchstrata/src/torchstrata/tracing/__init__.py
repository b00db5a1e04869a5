"""Traces: what a process compiles, written to a directory that ``torchstrata.report`` reads."""

from typing import TYPE_CHECKING

from symshapes.lazy import lazy_names

if TYPE_CHECKING:
    from .graphs import GraphTrace
    from .recording import Session, current, trace

__all__ = ["GraphTrace", "Session", "current", "trace"]

__getattr__, __dir__ = lazy_names(__name__)
