"""What nested tensors of jagged layout do with torch functions, as plain Python.

torch's own form parses signatures with FX and enters a context of its tracer.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch.nested._internal import ops


def torch_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """``NestedTensor.__torch_function__``."""
    kwargs = {} if kwargs is None else kwargs
    if func.__name__ == "flatten":
        return _flatten(*args, **kwargs)
    if func is F.scaled_dot_product_attention or func.__name__ in _OWN:
        return ops.jagged_torch_function(func, *args, **kwargs)
    if func.__name__ == "rms_norm":
        _check_normalized(*args, **kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


_OWN = ("apply_", "share_memory_", "is_shared")


def _flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    first, last = (
        ops._wrap_jagged_dim(
            input.dim(), dim, input._ragged_idx, "flatten", convert_to_inner_dim=False
        )
        for dim in (start_dim, end_dim)
    )
    if first == last:
        return input
    ragged = input._ragged_idx
    shape = [-1 if dim == ragged else input.size(dim) for dim in range(input.dim())]
    product = functools.reduce(operator.mul, shape[first : last + 1])
    shape[first : last + 1] = [product]
    return input.view(shape) if input._values.is_contiguous() else input.reshape(shape)


def _check_normalized(
    input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> None:
    if len(normalized_shape) > input.dim() - input._ragged_idx - 1:
        raise ValueError(
            "rms_norm(): Normalization over the ragged dim not supported for nested tensors"
        )
