"""Meta rules of our own, by op: results without running torch's meta kernels.

A rule is ``(mode, func, args, kwargs) -> result``; it returns NotImplemented for operands outside
its case.
"""

from __future__ import annotations

from . import (
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
from .registry import Rule, RuleTable

RULES = RuleTable.merged(
    creation.RULES,
    view.RULES,
    pointwise.RULES,
    reduction.RULES,
    matmul.RULES,
    convolution.RULES,
    data_dependent.RULES,
    library.RULES,
    checked.RULES,
)

__all__ = ["RULES", "Rule", "RuleTable"]
