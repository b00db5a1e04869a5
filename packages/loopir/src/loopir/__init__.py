"""Define-by-run loop IR: kernels, fusion, memory plan and host programs."""

from loopir.backend import CodeGenerator, KernelSource
from loopir.errors import (
    BuildError,
    LoopIRError,
    LoweringError,
    ParseError,
    ScheduleError,
    StoreError,
    VerificationError,
)
from loopir.evaluate import evaluate_kernel
from loopir.expr import FloorDiv, Mod, format_expr, parse_expr, symbol
from loopir.kernel import Body, Instruction, Kernel, KernelBuffer, Operand, Range, Value
from loopir.ops import OPS, REDUCTIONS, Domain, DtypeRule, OpSpec
from loopir.parse import parse_kernel, parse_kernels
from loopir.store import ArtifactStore
from loopir.text import format_kernel
from loopir.verify import check_kernel

__all__ = [
    "OPS",
    "REDUCTIONS",
    "ArtifactStore",
    "Body",
    "BuildError",
    "CodeGenerator",
    "Domain",
    "DtypeRule",
    "FloorDiv",
    "Instruction",
    "Kernel",
    "KernelBuffer",
    "KernelSource",
    "LoopIRError",
    "LoweringError",
    "Mod",
    "OpSpec",
    "Operand",
    "ParseError",
    "Range",
    "ScheduleError",
    "StoreError",
    "Value",
    "VerificationError",
    "check_kernel",
    "evaluate_kernel",
    "format_expr",
    "format_kernel",
    "parse_expr",
    "parse_kernel",
    "parse_kernels",
    "symbol",
]
