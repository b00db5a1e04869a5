"""Meta rules of our own, by op: results without running torch's meta kernels.

A rule is ``(mode, func, args, kwargs) -> result``; it returns NotImplemented for operands outside
its case.
"""

from __future__ import annotations

from . import (  # noqa: F401 (each registers its rules)
    checked,
    convolution,
    creation,
    data_dependent,
    library,
    matmul,
    pointwise,
    reduction,
    view,
)
from .registry import RULES, Rule, RuleTable

__all__ = ["RULES", "Rule", "RuleTable"]
