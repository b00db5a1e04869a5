"""What each neutral instruction does to trackers, by family."""

from . import (  # noqa: F401 (handlers)
    calls,
    containers,
    exceptions,
    generators,
    imports,
    jumps,
    names,
    operators,
    stack,
    withblocks,
)
from .table import HANDLERS, UNSUPPORTED

__all__ = ["HANDLERS", "UNSUPPORTED"]
