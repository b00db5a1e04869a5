"""Convolution and upsampling with the strides of the CPU and CUDA kernels."""

from __future__ import annotations

import operator
from typing import Any

import torch

from .format import (
    format_strides,
    has_channels_last_strides,
    is_fake,
    known_at_least,
    new_empty,
    require_equal,
    require_one_dtype,
    restrided,
    same_size,
)
from .registry import RULES, bind

aten = torch.ops.aten


def _prefers_channels_last(mode: Any, x: Any, weight: Any, options: tuple) -> bool:
    """Channels-last when the input or the weight is, except on CUDA where cuDNN isn't used or
    computes in float64. ``options``: the arguments from ``stride`` on.
    """
    if x.fake_device.type == "cuda":
        stride, _, _, is_transposed, padding, *_ = options
        stride, padding = (_per_dim(value, x.dim() - 2) for value in (stride, padding))
        is_padded = is_transposed and any(map(operator.ge, padding, stride))
        if is_padded or torch.float64 in (x.dtype, weight.dtype):
            return False
    if x.dim() == 3:  # runs in 2-d on a contiguous input
        if not x.is_contiguous():
            return has_channels_last_strides(mode.shape_env, weight.unsqueeze(2))
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
    return has_channels_last_strides(mode.shape_env, x) or has_channels_last_strides(
        mode.shape_env, weight
    )


def _strides(sizes: Any, channels_last: bool) -> list[Any]:
    if len(sizes) == 3 and channels_last:
        strides = format_strides([*sizes[:2], 1, sizes[2]], True)
        return [*strides[:2], strides[3]]
    return format_strides(sizes, channels_last)


def _output_sizes(mode: Any, args: tuple) -> list[Any] | None:
    """Sizes of a convolution's result, or None when the operands need the meta kernel's checks."""
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
    rank = x.dim()
    if (
        weight.dim() != rank
        or rank < 3
        or x.dtype is not weight.dtype
        or (bias is not None and bias.dtype is not x.dtype)
    ):
        return None
    spatial = rank - 2
    stride, padding, dilation, output_padding = (
        _per_dim(v, spatial) for v in (stride, padding, dilation, output_padding)
    )
    if any(not isinstance(v, int) for v in (*stride, *padding, *dilation)) or min(stride) < 1:
        return None
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if not same_size(x.shape[1], channels):
        return None
    out = [x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0]]
    for d in range(spatial):
        size, kernel = x.shape[d + 2], weight.shape[d + 2]
        reach = dilation[d] * (kernel - 1) + 1
        if transposed:
            out.append((size - 1) * stride[d] - 2 * padding[d] + reach + output_padding[d])
        else:
            out.append((size + 2 * padding[d] - reach) // stride[d] + 1)
    return out if all(known_at_least(mode.shape_env, s, 1) for s in out[1:]) else None


def _per_dim(value: Any, rank: int) -> list[Any]:
    return list(value) * rank if len(value) == 1 else list(value)


@RULES.register("convolution")
def convolution(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Dense, in the memory format that the operands prefer."""
    x, weight = args[:2]
    if not kwargs and len(args) == 9 and mode.common_device(func, args, kwargs) == x.fake_device:
        sizes = _output_sizes(mode, args)
        if sizes is not None:
            strides = _strides(sizes, _prefers_channels_last(mode, x, weight, args[3:]))
            return new_empty(mode, x, sizes, strides)
    if not any(same_size(size, 0) for size in x.shape):  # kernels check nothing for an empty batch
        require_one_dtype(("input", x), ("weight", weight))
        require_one_dtype(("input", x), ("bias", args[2]))
    is_transposed = args[6] and x.dim() == weight.dim()
    if is_transposed and not require_equal(mode.shape_env, x.shape[1], weight.shape[0]):
        raise RuntimeError(
            f"transposed convolution: {x.shape[1]} channels for a weight of size "
            f"{list(weight.shape)}"
        )
    out = mode.run_meta(func, args, kwargs)
    channels_last = _prefers_channels_last(mode, x, weight, args[3:])
    return restrided(mode, out, _strides(out.shape, channels_last))


@RULES.register("convolution_backward")
def convolution_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Gradients of input and weight have the forward's format; the bias gradient is a vector."""
    grad, x, weight = args[:3]
    mask = bind(func, args, kwargs)["output_mask"]
    channels_last = _prefers_channels_last(mode, x, weight, args[4:])
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        grad_x = new_empty(mode, x, x.shape, _strides(x.shape, channels_last))
    if mask[1]:
        strides = _strides(weight.shape, channels_last)
        in_kernel = channels_last and weight.dim() > 3 and x.fake_device.type == "cpu"
        if in_kernel and not _runs_in_onednn(x, weight, args):
            format = torch.channels_last if weight.dim() == 4 else torch.channels_last_3d
            strides = weight.contiguous(memory_format=format).stride()
        grad_weight = new_empty(mode, x, weight.shape, strides)
    if mask[2]:
        grad_bias = new_empty(mode, x, (grad.shape[1],))
    return grad_x, grad_weight, grad_bias


def _runs_in_onednn(x: Any, weight: Any, args: tuple) -> bool:
    """ATen's choice of oneDNN on the CPU, which shows only in strides of size-1 dims."""
    if x.dtype in (torch.bfloat16, torch.float16):
        return True
    if x.dtype is not torch.float32 or not torch.backends.mkldnn.is_available():
        return False
    batch = x.shape[0] if type(x.shape[0]) is int else x.shape[0].node.require_hint(2)
    stride, dilation, groups = args[4], args[6], args[9]
    pointwise = all(type(k) is int and k == 1 for k in weight.shape[2:])
    plain = all(v == 1 for v in (*stride, *dilation))
    return (not pointwise or not plain or batch >= 16 or torch.get_num_threads() > 1) and (
        groups > 1 or batch > 1
    )


@RULES.register(
    "upsample_bilinear2d_backward upsample_nearest2d_backward upsample_bicubic2d_backward "
    "upsample_nearest3d_backward upsample_trilinear3d_backward"
)
def upsample_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The input's sizes in the format of the incoming gradient."""
    grad = args[0]
    sizes = bind(func, args, kwargs)["input_size"]
    if not is_fake(grad):
        return NotImplemented
    channels_last = has_channels_last_strides(mode.shape_env, grad)
    return new_empty(mode, grad, sizes, format_strides(sizes, channels_last))
