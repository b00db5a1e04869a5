"""What each neutral instruction does to trackers, by family."""

from . import calls, containers, exceptions, generators, jumps, names, operators, stack, withblocks  # noqa: F401 (handlers)
from .table import HANDLERS, UNSUPPORTED

__all__ = ["HANDLERS", "UNSUPPORTED"]
