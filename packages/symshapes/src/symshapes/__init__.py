"""Symbolic shapes and fake tensors over SymPy."""

from .env import ShapeEnv
from .errors import DataDependentError, FakeTensorError, FrozenEnvError, GuardOnDataDependent, SymbolicError
from .expr import MATH_FUNCTIONS, Ceil, CeilDiv, Floor, FloorDiv, Mod, Round, ToFloat, TrueDiv, Trunc
from .fake import FakeTensor, FakeTensorMode
from .graph_module import LazyGraphModule
from .guards import SizeGuard, current_user_line, python_text
from .node import SymNode
from .quiet import quiet
from .ranges import Interval
from .values import expr_of, free_symbols, hint_of, is_symbolic, statically_known_true, sym_int

__all__ = [
    "MATH_FUNCTIONS", "Ceil", "CeilDiv", "DataDependentError", "FakeTensor", "FakeTensorError", "FakeTensorMode",
    "Floor", "FloorDiv", "FrozenEnvError", "GuardOnDataDependent", "Interval", "LazyGraphModule", "Mod", "Round",
    "ShapeEnv", "SizeGuard", "SymNode", "SymbolicError", "ToFloat", "TrueDiv", "Trunc", "current_user_line", "expr_of",
    "free_symbols", "hint_of", "is_symbolic", "python_text", "quiet", "statically_known_true", "sym_int",
]  # fmt: skip
