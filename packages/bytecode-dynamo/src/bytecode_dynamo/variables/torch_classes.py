"""Classes of tensors whose behaviour is torch's own, unless a program replaces part of it."""

from __future__ import annotations

import torch

TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
TORCHS = {
    cls: {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    for cls in TENSOR_TYPES
}
"""What the classes have of torch: programs may replace it."""
