"""The PyTorch 2 compiler system as one call: ``torchstrata.compile(model)``.

What programs say about capture (``disable``, ``graph_break``, ``mark_dynamic``, ``explain``, ...)
is ``bytecode_dynamo``'s.
"""

from typing import TYPE_CHECKING

from symshapes.lazy import lazy_names

from .logs import configure_logging

if TYPE_CHECKING:
    from bytecode_dynamo import (
        allow_in_graph,
        assume_constant_result,
        disable,
        disallow_in_graph,
        error_on_graph_break,
        explain,
        graph_break,
        is_compiling,
        mark_dynamic,
        mark_static,
        mark_unbacked,
        maybe_mark_dynamic,
        set_stance,
        substitute_in_graph,
    )

    from . import compiler
    from .api import compile, compile_fx, list_code_generators, reset
    from .artifacts.loading import LoadedProgram, load
    from .artifacts.saving import save
    from .backends import list_backends
    from .bisect.locate import Finding
    from .bisect.replaying import replay
    from .bisect.searching import NothingFound, bisect
    from .config import Config, config
    from .counters import counters
    from .errors import (
        ArtifactError,
        CompileError,
        FallbackWarning,
        LockWarning,
        StoreWarning,
        TraceWarning,
        UsageError,
        WrongResultError,
        WrongResultWarning,
    )
    from .logs import set_logs
    from .tracing.recording import trace

__version__ = "0.2.0"

__all__ = [
    "ArtifactError", "CompileError", "Config", "FallbackWarning", "Finding", "LoadedProgram",
    "LockWarning", "NothingFound", "StoreWarning", "TraceWarning", "UsageError", "WrongResultError",
    "WrongResultWarning",
    "allow_in_graph", "assume_constant_result", "bisect",
    "compile", "compile_fx", "compiler", "config", "counters", "disable", "disallow_in_graph",
    "error_on_graph_break", "explain",
    "graph_break", "is_compiling", "list_backends", "list_code_generators", "load", "mark_dynamic",
    "mark_static", "mark_unbacked", "maybe_mark_dynamic", "replay", "reset",
    "save", "set_logs", "set_stance", "substitute_in_graph", "trace",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)


configure_logging()
