"""Layers of recurrent networks in the form in which graphs hold them: operators of the library
``aotgrad`` that depend on their arguments alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

aten = torch.ops.aten
_LIBRARY = torch.library.Library("aotgrad", "FRAGMENT")


def _rnn_layer(*args: Any) -> Any:
    """oneDNN's RNN layer with saved values for backward, which it keeps only in grad mode; no
    argument controls it.
    """
    with torch.enable_grad():
        return aten.mkldnn_rnn_layer(*args)


def _cudnn_rnn(x: Any, weights: Any, stride0: int, _: Any, hx: Any, cx: Any, *rest: Any) -> Any:
    """cuDNN's network; of its results, the flat buffer of the weights is empty, because it may be
    the memory of the weights themselves.
    """
    nothing = x.new_empty(0)
    flat = nothing if x.is_meta else _flat(x, weights, stride0, *_shape_of(rest))
    output, hy, cy, reserve, _ = aten._cudnn_rnn(x, weights, stride0, flat, hx, cx, *rest)
    return output, hy, nothing.clone() if cx is None else cy, reserve, nothing


def _cudnn_rnn_backward(x: Any, weights: Any, stride0: int, _: Any, hx: Any, *rest: Any) -> Any:
    """Gradients of cuDNN's network in one list, of its input and states and then of its weights;
    those that ``rest[-1]`` doesn't ask for are not computed.
    """
    cx, *between, reserve, mask = rest
    gradients = [None] * 3, [None] * len(weights) * mask[3]
    if not x.is_meta:
        flat = _flat(x, weights, stride0, *_shape_of(between[4:]))
        # cuDNN writes to the reserve, and the caller may run backward again
        *own, of_weights = aten._cudnn_rnn_backward(
            x, weights, stride0, flat, hx, cx, *between, reserve.clone(), mask
        )
        gradients = own, of_weights
    values = [x, hx, hx if cx is None else cx, *weights]
    return [_result(*pair) for pair in zip([*gradients[0], *gradients[1]], values)]


def _result(gradient: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
    """The gradient at an address that kernels expect of results; memory for one not computed."""
    if gradient is None:
        return value.new_empty(value.shape)
    return gradient if gradient.data_ptr() % 16 == 0 else gradient.clone()


def _shape_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Of the arguments from ``mode`` on, those on which the layout of the weights depends."""
    mode, hidden, projected, layers, batch_first, _, _, bidirectional, *_ = arguments
    return mode, hidden, projected, layers, batch_first, bidirectional


def _flat(x: Any, weights: Sequence[Any], stride0: int, *shape: Any) -> torch.Tensor:
    """The weights in one piece of memory: their own if ``nn.RNNBase.flatten_parameters`` has laid
    them out, else a copy.
    """
    first, shapes = weights[0], tuple(tuple(w.shape) for w in weights)
    count, offsets = _layout(first.device, first.dtype, shapes, stride0, x.shape[-1], shape)
    storage = first.untyped_storage()
    start = storage.data_ptr()
    is_flat = storage.nbytes() >= count * first.itemsize and all(
        w.data_ptr() == start + offset * w.itemsize and w.is_contiguous()
        for w, offset in zip(weights, offsets)
    )
    if is_flat:
        return first.new_empty(0).set_(storage, 0, (count,), (1,))
    flat = first.new_zeros(count)
    for w, offset in zip(weights, offsets):
        flat[offset : offset + w.numel()].view(w.shape).copy_(w)
    return flat


@cache
def _layout(
    device: torch.device,
    dtype: torch.dtype,
    shapes: tuple[tuple[int, ...], ...],
    stride0: int,
    width: int,
    shape: tuple[Any, ...],
) -> tuple[int, tuple[int, ...]]:
    """The elements of cuDNN's buffer of weights, and the place of each weight in it."""
    weights = [torch.empty(each, device=device, dtype=dtype) for each in shapes]
    flat = torch._cudnn_rnn_flatten_weight(weights, stride0, width, *shape)
    return flat.numel(), tuple(int(w.storage_offset()) for w in weights)


def _define(name: str, base: Any, run: Any, returns: str = "") -> Any:
    """The operator ``aotgrad::<name>`` with the arguments of ``base``, and its results unless
    others are given.
    """
    arguments, arrow, results = str(base.default._schema).partition("(")[2].rpartition(" -> ")
    _LIBRARY.define(f"{name}({arguments}{arrow}{returns or results}")
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    return getattr(torch.ops.aotgrad, name).default


_LAYER = _define("rnn_layer_training", aten.mkldnn_rnn_layer, _rnn_layer)
_CUDNN = _define("cudnn_rnn", aten._cudnn_rnn, _cudnn_rnn)
_CUDNN_BACKWARD = _define(
    "cudnn_rnn_backward", aten._cudnn_rnn_backward, _cudnn_rnn_backward, "Tensor[]"
)
_RECORDED = {
    aten._cudnn_rnn.default: _CUDNN,
    aten._cudnn_rnn_backward.default: _CUDNN_BACKWARD,
}


def recorded_form(func: Any) -> Any:
    """The operator that a graph holds instead of ``func``."""
    if func is aten.mkldnn_rnn_layer.default and torch.is_grad_enabled():
        return _LAYER
    return _RECORDED.get(func, func)


def as_called(func: Any, results: Any) -> Any:
    """The results of a recorded form, nested as those of the operator that was called."""
    return (*results[:3], list(results[3:])) if func is _CUDNN_BACKWARD else results


def is_workspace(node: torch.fx.Node) -> bool:
    """Whether only cuDNN knows the size of a value: what forward keeps for backward. Autograd
    copies it.
    """
    match node.args:
        case (torch.fx.Node() as source, 3):
            return source.target is _CUDNN
    return False
