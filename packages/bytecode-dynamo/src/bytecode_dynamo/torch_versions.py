"""What differs between the versions of torch, found by asking the one that is installed."""

from __future__ import annotations

from typing import Any

import torch.distributions.distribution
from torch.autograd import Function

FUNCTION_APPLY: Any = getattr(vars(Function)["apply"], "__func__", vars(Function)["apply"])
"""What ``Function.apply`` binds to a class: a function, or from torch 2.14 on C's descriptor of a class method."""

_all_true = getattr(torch.distributions.distribution, "_all_true_or_runtime_assert", None)
TRUTHS_OF_ALL: tuple[Any, ...] = (_all_true,) if _all_true is not None else ()
"""What says of a distribution's parameters whether they are valid, from torch 2.14 on: ``bool`` of a tensor."""
