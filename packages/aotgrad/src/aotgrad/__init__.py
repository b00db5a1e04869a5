"""Ahead-of-time autograd: forward and backward graphs in functional ATen form."""

from .api import aot_backend, run_eager
from .errors import AotError, CompilerError, ContractError, Unsupported, UserError
from .joint import Joint, trace_joint
from .partition import Partition, partition_default, partition_min_cut
from .verify import check_functional

__all__ = [
    "AotError",
    "CompilerError",
    "ContractError",
    "Joint",
    "Partition",
    "Unsupported",
    "UserError",
    "aot_backend",
    "check_functional",
    "partition_default",
    "partition_min_cut",
    "run_eager",
    "trace_joint",
]
