"""Graph capture by the PEP 523 frame hook."""

from typing import TYPE_CHECKING

from bytecode_dynamo import interpreter  # noqa: F401 (first, for it refuses what the rest can't run on)

# isort: split
from symshapes.lazy import lazy_names

if TYPE_CHECKING:
    from bytecode_dynamo import errors as exc
    from bytecode_dynamo.capture.observing import FrameReport, Observer, observers
    from bytecode_dynamo.capture.policy import Captured
    from bytecode_dynamo.graph.opaque import OpaqueCall
    from bytecode_dynamo.graph.text import format_captured, parse_captured
    from bytecode_dynamo.graph.verify import check_captured
    from bytecode_dynamo.guards.phrase import phrase
    from bytecode_dynamo.guards.records import GuardKind, GuardRecord
    from bytecode_dynamo.guards.text import format_guards
    from bytecode_dynamo.guards.text_reader import parse_guards
    from bytecode_dynamo.hook.disabling import disable
    from bytecode_dynamo.hook.stance import error_on_graph_break, set_stance

    from .api import Optimizer, explain, optimize, precompiled, reset, run
    from .backends import eager, list_backends, lookup_backend, register_backend
    from .config import Config, config
    from .control import (
        allow_in_graph,
        assume_constant_result,
        disallow_in_graph,
        graph_break,
        is_compiling,
        substitute_in_graph,
    )
    from .counters import counters
    from .errors import (
        BackendCompilerFailed,
        ContractError,
        GraphBreak,
        InvariantError,
        RecompileError,
        Unsupported,
        UserError,
    )
    from .explain import Explanation
    from .export import ExportResult, export
    from .kept.contents import Contents, patches
    from .marks import mark_dynamic, mark_static, mark_unbacked, maybe_mark_dynamic
    from .whole_program import Inputs, Output, WholeProgram, capture_whole

__version__ = "0.2.0"

__all__ = [
    "BackendCompilerFailed", "Captured", "Config", "Contents", "ContractError",
    "Explanation", "ExportResult", "FrameReport",
    "GraphBreak", "GuardKind", "GuardRecord", "Inputs",
    "InvariantError", "Observer", "OpaqueCall", "Optimizer", "Output", "RecompileError",
    "Unsupported",
    "UserError", "WholeProgram", "allow_in_graph",
    "assume_constant_result", "capture_whole", "check_captured", "config", "counters", "disable",
    "disallow_in_graph", "eager",
    "error_on_graph_break", "exc", "explain", "export", "format_captured", "format_guards",
    "graph_break", "is_compiling",
    "list_backends", "lookup_backend", "mark_dynamic", "mark_static", "mark_unbacked",
    "maybe_mark_dynamic", "observers", "optimize",
    "parse_captured", "parse_guards", "patches", "phrase", "precompiled", "register_backend",
    "reset", "run", "set_stance", "substitute_in_graph",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
