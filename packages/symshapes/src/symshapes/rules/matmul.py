"""Matrix products: contiguous results; inner sizes must agree."""

from __future__ import annotations

from typing import Any

import torch

from .format import is_fake, require_equal
from .registry import RuleTable

aten = torch.ops.aten
RULES = RuleTable()


def _agree(mode: Any, func: Any, operands: tuple, rank: int) -> bool:
    """Whether the fast rule applies: fakes of one dtype and device, of the right rank."""
    first = operands[0]
    if not all(is_fake(x) and x.fake_mode is mode and x.dim() == rank for x in operands):
        return False
    return all(x.dtype is first.dtype and x.fake_device == first.fake_device for x in operands)


def _product(mode: Any, a: Any, b: Any) -> Any:
    env = mode.shape_env
    if not require_equal(env, a.shape[-1], b.shape[-2]):
        return NotImplemented
    if a.dim() == 3 and not require_equal(env, a.shape[0], b.shape[0]):
        return NotImplemented
    return mode.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype, device=a.fake_device)


@RULES.register("mm bmm")
def product(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    rank = 2 if func is aten.mm.default else 3
    return _product(mode, *args) if len(args) == 2 and _agree(mode, func, args, rank) else NotImplemented


@RULES.register("addmm")
def addmm(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``bias`` is a row or a full matrix here; other broadcasts go to the meta kernel."""
    bias, a, b = args[:3]
    if len(args) != 3 or not _agree(mode, func, (a, b), 2) or bias.dtype is not a.dtype or bias.fake_device != a.fake_device:
        return NotImplemented
    sizes = (a.shape[0], b.shape[1])
    if not 1 <= bias.dim() <= 2 or not all(require_equal(mode.shape_env, x, y) for x, y in zip(bias.shape[::-1], sizes[::-1])):
        return NotImplemented
    return _product(mode, a, b)
