"""Ahead-of-time autograd: forward and backward graphs in functional ATen form."""

from typing import TYPE_CHECKING

from symshapes.lazy import lazy_names

if TYPE_CHECKING:
    from aotgrad.compiling.captured_graph import leaves_inference_mode
    from aotgrad.compiling.load import load_compiled
    from aotgrad.graphs.budget import memory_pareto, partition_within
    from aotgrad.graphs.dropout_masks import redraw_masks
    from aotgrad.graphs.partition import Partition, partition_default, partition_min_cut
    from aotgrad.graphs.patterns import Pattern, register_pattern, unregister_pattern
    from aotgrad.graphs.split import JointAnalysis
    from aotgrad.graphs.text import format_functional, parse_functional
    from aotgrad.graphs.verify import check_functional
    from aotgrad.running.eager import run_eager
    from aotgrad.running.fallback import FallbackWarning, counters
    from aotgrad.tracing.joint import Joint, trace_joint
    from aotgrad.tracing.made_operators import make_operator

    from .api import (
        aot_backend,
        aot_function,
        aot_module,
        captured_compilation,
        trace_functional,
    )
    from .errors import AotError, CompilerError, ContractError, Unsupported, UserError

__version__ = "0.2.0"

__all__ = [
    "AotError", "CompilerError", "ContractError", "FallbackWarning", "Joint", "JointAnalysis",
    "Partition", "Pattern",
    "Unsupported", "UserError", "aot_backend", "aot_function", "aot_module",
    "captured_compilation", "check_functional", "counters", "format_functional",
    "leaves_inference_mode", "load_compiled", "make_operator", "memory_pareto",
    "parse_functional",
    "partition_default", "partition_min_cut", "partition_within", "redraw_masks",
    "register_pattern",
    "run_eager", "trace_functional", "trace_joint", "unregister_pattern",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
