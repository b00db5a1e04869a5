"""Tensor classes with torch's own behaviour, unless a program patched them."""

from __future__ import annotations

import torch

TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
TORCHS = {
    cls: {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    for cls in TENSOR_TYPES
}
"""torch's own attributes of these classes, which programs may replace."""
