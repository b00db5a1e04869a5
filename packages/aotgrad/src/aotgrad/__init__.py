"""Ahead-of-time autograd: forward and backward graphs in functional ATen form."""

from .api import aot_backend, aot_function, aot_module, trace_functional
from .budget import memory_pareto, partition_within
from .eager import run_eager
from .errors import AotError, CompilerError, ContractError, Unsupported, UserError
from .fallback import FallbackWarning, counters
from .joint import Joint, trace_joint
from .masks import redraw_masks
from .partition import Partition, partition_default, partition_min_cut
from .patterns import Pattern, register_pattern, unregister_pattern
from .split import JointView
from .verify import check_functional

__version__ = "0.2.0"

__all__ = [
    "AotError", "CompilerError", "ContractError", "FallbackWarning", "Joint", "JointView",
    "Partition", "Pattern",
    "Unsupported", "UserError", "aot_backend", "aot_function", "aot_module", "check_functional",
    "counters",
    "memory_pareto", "partition_default", "partition_min_cut", "partition_within", "redraw_masks",
    "register_pattern",
    "run_eager", "trace_functional", "trace_joint", "unregister_pattern",
]  # fmt: skip
