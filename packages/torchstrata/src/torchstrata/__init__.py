"""The PyTorch 2 compiler system as one call: ``torchstrata.compile(model)``."""

from torchstrata.api import compile, compile_fx, reset
from torchstrata.config import Config, config
from torchstrata.counters import counters
from torchstrata.errors import CompileError, FallbackWarning, UsageError
from torchstrata.stages import STAGES, Stage

__version__ = "0.1.0"

__all__ = [
    "STAGES", "CompileError", "Config", "FallbackWarning", "Stage", "UsageError", "compile", "compile_fx", "config",
    "counters", "reset",
]  # fmt: skip
