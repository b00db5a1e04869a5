"""Convolution: sizes from the meta kernel, strides as the CPU and CUDA kernels give them."""

from __future__ import annotations

from typing import Any

import torch

from .registry import RuleTable

aten = torch.ops.aten
RULES = RuleTable()


def is_channels_last(x: Any) -> bool:
    """Whether eager would suggest a channels-last result for ``x``: rank 4 or 5 with channels-last strides."""
    if x.dim() not in (4, 5):
        return False
    format = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    if not x.is_contiguous(memory_format=format):
        return False
    return not x.is_contiguous() or all(s != 1 for s in x.shape[2:])


@RULES.register(aten.convolution.default)
def convolution(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Channels-last when the input or the weight is, except for float64 on the CPU."""
    x, weight = args[:2]
    out = mode.run_meta(func, args, kwargs)
    if x.fake_device.type == "cpu" and x.dtype is torch.float64:
        return out
    if not (is_channels_last(x) or is_channels_last(weight)):
        return out.contiguous()
    return out.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
