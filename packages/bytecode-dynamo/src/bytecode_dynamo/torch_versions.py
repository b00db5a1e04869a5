"""What differs between the versions of torch, found by asking the one that is installed."""

from __future__ import annotations

from typing import Any

import torch.distributions.distribution
from torch.autograd import Function

FUNCTION_APPLY: Any = getattr(vars(Function)["apply"], "__func__", vars(Function)["apply"])
"""What ``Function.apply`` binds to a class: a Python function, or (torch 2.15) a class method
written in C.
"""

_all_true = getattr(torch.distributions.distribution, "_all_true_or_runtime_assert", None)
ALL_TRUE_FUNCTIONS: tuple[Any, ...] = (_all_true,) if _all_true is not None else ()
"""What validates the parameters of a distribution in torch 2.15; it returns ``bool`` of a tensor.
"""
