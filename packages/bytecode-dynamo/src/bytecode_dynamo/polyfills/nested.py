"""What nested tensors of jagged layout do with torch functions, as plain Python.

torch's own form parses signatures with FX and enters a context of its tracer. Functions whose
autograd formula asks for the layout, which tensors of a trace do not have, act on the values here.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nested._internal import ops
from torch.nested._internal.nested_tensor import nested_view_from_values_offsets

from .nested_attention import attention, padded


def torch_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """``NestedTensor.__torch_function__``."""
    kwargs = {} if kwargs is None else kwargs
    name = func.__name__
    if name == "flatten":
        return _flatten(*args, **kwargs)
    if name in _ON_VALUES and args and "out" not in kwargs:
        result = _ON_VALUES[name](*args, **kwargs)
        if result is not NotImplemented:
            return result
    if func is F.scaled_dot_product_attention or name in _OWN:
        return ops.jagged_torch_function(func, *args, **kwargs)
    if name == "rms_norm":
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


# -- on the values ---------------------------------------------------------------------------------


def _to_padded_tensor(input: Any, padding: float, output_size: Any = None) -> Any:
    values = input.values()
    if input._lengths is not None or values.size(input._ragged_idx - 1) == 0:
        return NotImplemented
    ragged = input._ragged_idx
    if output_size is not None:
        size = output_size[ragged]
    else:
        size = input._maybe_max_seqlen
        size = values.size(0) if size is None else size
    dense = padded(values.transpose(ragged - 1, 0), input._offsets, size, padding)
    return dense.transpose(ragged, 1) if ragged > 1 else dense


def _sum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    dims = _reduced(input, dim)
    if dims == [input._ragged_idx]:
        dense = _to_padded_tensor(input, 0)
        if dense is not NotImplemented:
            return dense.sum(dims, keepdim, dtype=dtype)
    return _on_values(torch.sum, input, dims, keepdim, dtype)


def _mean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    dims = _reduced(input, dim)
    if dims == []:
        return input.values().mean(dtype=dtype)
    if dims == [input._ragged_idx]:
        total = _sum(input, dims, True, dtype=dtype)
        lengths = input._offsets.diff()
        mean = total / lengths.view(-1, *(1 for _ in total.shape[1:]))
        return mean if keepdim else mean.squeeze(input._ragged_idx)
    return _on_values(torch.mean, input, dims, keepdim, dtype)


def _reduced(input: Any, dim: Any) -> list[int] | None:
    """The reduced dims; empty for all, None for what torch's form decides."""
    if not _is_packed(input):
        return None
    dims = () if dim is None else (dim,) if isinstance(dim, int) else dim
    count = input.dim()
    if not all(-count <= d < count for d in dims):
        return None
    return [d % count for d in dims]


def _on_values(
    function: Callable[..., Any], input: Any, dims: list[int] | None, keepdim: bool, dtype: Any
) -> Any:
    """A reduction along dims that are not ragged."""
    if not dims or 0 in dims or input._ragged_idx in dims:
        return NotImplemented
    values = function(input.values(), [d - 1 for d in dims], keepdim, dtype=dtype)
    before = 0 if keepdim else len([d for d in dims if d < input._ragged_idx])
    return _like(input, values, input._ragged_idx - before)


def _chunk(input: Any, chunks: int, dim: int = 0) -> Any:
    dims = _reduced(input, dim) if _is_recorded(input) else None
    if not dims or 0 in dims or input._ragged_idx in dims:
        return NotImplemented
    parts = input.values().chunk(chunks, dims[0] - 1)
    return tuple(_like(input, part, input._ragged_idx) for part in parts)


def _view(input: Any, *size: Any) -> Any:
    if not _is_recorded(input):
        return NotImplemented
    return _resized(torch.Tensor.view, input, size)


def _reshape(input: Any, *size: Any) -> Any:
    if not _is_recorded(input) and _is_packed(input) and input._values.is_contiguous():
        return input.view(*size)
    return _resized(torch.Tensor.reshape, input, size)


def _resized(function: Callable[..., Any], input: Any, size: Any) -> Any:
    size = size[0] if isinstance(size[0], tuple | list) else size
    if not _is_packed(input) or input._ragged_idx != 1 or len(size) < 3:
        return NotImplemented
    for new, old in zip(size[:2], input.shape):
        if new != old and new != -1:
            return NotImplemented
    values = input.values()
    return _like(input, function(values, (values.size(0), *size[2:])), 1)


def _unflatten(input: Any, dim: Any, sizes: Any) -> Any:
    dims = _reduced(input, dim) if _is_recorded(input) and isinstance(dim, int) else None
    if not dims or 0 in dims or input._ragged_idx in dims:
        return NotImplemented
    added = len(sizes) - 1 if dims[0] < input._ragged_idx else 0
    return _like(input, input.values().unflatten(dims[0] - 1, sizes), input._ragged_idx + added)


def _rms_norm(
    input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    if not _is_packed(input):
        return NotImplemented
    _check_normalized(input, normalized_shape)
    values = F.rms_norm(input.values(), normalized_shape, weight, eps)
    return _like(input, values, input._ragged_idx)


def _is_packed(input: Any) -> bool:
    """Whether it is a nested tensor whose rows follow each other without holes."""
    return input.is_nested and input._lengths is None


def _is_recorded(input: Any) -> bool:
    """Whether autograd records it; if not, views are torch's own, which returned ones need."""
    return torch.is_grad_enabled() and input.requires_grad and _is_packed(input)


def _like(input: Any, values: Any, ragged: int) -> Any:
    """A nested tensor with the offsets of another."""
    return nested_view_from_values_offsets(
        values,
        input._offsets,
        ragged_idx=ragged,
        min_seqlen=input._maybe_min_seqlen,
        max_seqlen=input._maybe_max_seqlen,
    )


_ON_VALUES: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": attention,
    "to_padded_tensor": _to_padded_tensor,
    "nested_to_padded_tensor": _to_padded_tensor,
    "sum": _sum,
    "mean": _mean,
    "chunk": _chunk,
    "view": _view,
    "reshape": _reshape,
    "unflatten": _unflatten,
    "rms_norm": _rms_norm,
}
