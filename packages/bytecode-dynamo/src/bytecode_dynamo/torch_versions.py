"""Differences between torch versions, found by inspecting the installed one."""

from __future__ import annotations

from typing import Any

import torch.distributions.distribution
from torch.autograd import Function

FUNCTION_APPLY: Any = getattr(vars(Function)["apply"], "__func__", vars(Function)["apply"])
"""The function that ``Function.apply`` binds to a class: in Python, or (torch 2.15) a C class
method.
"""

_all_true = getattr(torch.distributions.distribution, "_all_true_or_runtime_assert", None)
ALL_TRUE_FUNCTIONS: tuple[Any, ...] = (_all_true,) if _all_true is not None else ()
"""The validation of distribution parameters in torch 2.15; it returns ``bool`` of a tensor."""
