"""Graph capture by the PEP 523 frame hook."""

from . import errors as exc
from .api import (
    Optimizer,
    disable,
    eager,
    explain,
    graph_break,
    is_compiling,
    list_backends,
    lookup_backend,
    mark_dynamic,
    mark_static,
    optimize,
    reset,
    run,
)
from .capture import Captured
from .config import Config, config
from .counters import counters
from .errors import BackendCompilerFailed, ContractError, GraphBreak, InvariantError, Unsupported, UserError
from .explain import Explanation
from .show import format_graph
from .verify import check_captured

__all__ = [
    "BackendCompilerFailed",
    "Captured",
    "Config",
    "ContractError",
    "Explanation",
    "GraphBreak",
    "InvariantError",
    "Optimizer",
    "Unsupported",
    "UserError",
    "check_captured",
    "config",
    "counters",
    "disable",
    "eager",
    "exc",
    "explain",
    "format_graph",
    "graph_break",
    "is_compiling",
    "list_backends",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "optimize",
    "reset",
    "run",
]
