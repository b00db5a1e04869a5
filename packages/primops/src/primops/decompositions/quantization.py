"""Fake quantisation: rounding to a grid of integers in float, with the mask through which gradients
pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from primops import prims
from primops.operand import Tensor, along, full_like, over, round_to, to_bool, to_dtype, widen
from primops.promotion import is_integral
from primops.registry import DecompositionTable

rules = DecompositionTable()


def _quantized(
    a: Tensor, scale: Any, zero: Any, least: int, most: int, whole: bool
) -> tuple[Tensor, Tensor]:
    """``whole``: the zero point is an integer, added after rounding."""
    levels = prims.mul(widen(a), prims.div(1.0, scale))
    level = prims.add(prims.round(levels), zero) if whole else prims.round(prims.add(levels, zero))
    inside = prims.bitwise_and(prims.ge(level, least), prims.le(level, most))
    is_nan = prims.ne(level, level)
    level = prims.where(is_nan, least, prims.minimum(prims.maximum(level, least), most))
    return round_to(prims.mul(prims.sub(level, zero), scale), a.dtype), inside


def _by_tensors(
    a: Tensor, scale: Tensor, zero: Tensor, dim: int | None, least: int, most: int
) -> tuple[Tensor, Tensor]:
    spread = over if dim is None else partial(along, dim=dim)
    steps, offset = (spread(to_dtype(x, widen(a).dtype), shape=a.shape) for x in (scale, zero))
    return _quantized(a, steps, offset, least, most, is_integral(zero.dtype))


@rules.register("fake_quantize_per_tensor_affine_cachemask")
def per_tensor(
    self: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """``(clamp(round(x / scale) + zero_point) - zero_point) * scale``; also where nothing was
    clamped.
    """
    spread = full_like(self, scale, widen(self).dtype)  # 1 / scale rounds in the tensor's dtype
    return _quantized(self, spread, float(zero_point), quant_min, quant_max, True)


@rules.register("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def per_tensor_of_tensors(
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    fake_quant_enabled: Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor]:
    """``per_tensor``, or nothing where it is switched off."""
    found, inside = _by_tensors(self, scale, zero_point, None, quant_min, quant_max)
    enabled = over(to_bool(fake_quant_enabled), self.shape)
    return prims.where(enabled, found, self), prims.bitwise_or(inside, prims.bitwise_not(enabled))


@rules.register("fake_quantize_per_channel_affine_cachemask")
def per_channel(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """``per_tensor`` with a scale and a zero point per channel."""
    return _by_tensors(self, scale, zero_point, axis % self.ndim, quant_min, quant_max)
