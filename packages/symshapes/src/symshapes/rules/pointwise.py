"""Elementwise ops."""

from __future__ import annotations

from typing import Any

import torch

from .registry import RuleTable

aten = torch.ops.aten
RULES = RuleTable()


def _same(x: Any, y: Any) -> bool:
    if type(x) is int or type(y) is int:
        return type(x) is type(y) and x == y
    return x.node._expr == y.node._expr


def same_layout(a: Any, b: Any) -> bool:
    """Whether two fakes have structurally equal sizes and strides."""
    return a.dim() == b.dim() and all(map(_same, a.shape, b.shape)) and all(map(_same, a.stride(), b.stride()))


@RULES.register(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)
def binary(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Equal dtype, device, sizes and contiguous strides: the result is laid out like the operands."""
    a, b = args
    fake = type(a)
    if not hasattr(fake, "fake_device") and type(b) is not fake:
        return NotImplemented
    if type(b) is not fake or a.dtype is not b.dtype or a.fake_device != b.fake_device:
        return NotImplemented
    if not same_layout(a, b) or not a.is_contiguous():
        return NotImplemented
    return mode.empty(a.shape, dtype=a.dtype, device=a.fake_device)
