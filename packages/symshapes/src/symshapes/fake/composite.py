"""Composite ops that read sizes as plain integers in C++, written over symbolic sizes.

C++ would specialise every size of the input. torch's Python kernels for these ops decompose them
into arithmetic, unlike eager. Our kernels compute the output size in symbols and call the op that
eager calls. They apply only while one of our modes is active.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from .recurrent import MODES, gru_cell, recurrent

aten = torch.ops.aten
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
_CPU, _FUNCTIONALIZE = torch._C.DispatchKey.CPU, torch._C.DispatchKey.Functionalize

_NEAREST = [
    f"{p}upsample_nearest{e}{d}d" for d in (1, 2, 3) for p, e in (("", ""), ("_", "_exact"))
]
_RESIZING = [
    *_NEAREST,
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
]
# Eager has kernels and derivatives; torch's Python forms differ from them, the margin losses even
# in their values.
_DECOMPOSED = ("softshrink", "hardshrink", "multi_margin_loss", "multilabel_margin_loss_forward")
_installed: set[type] = set()


def install(mode_type: type) -> None:
    """Installs the kernels once per process; they apply while a ``mode_type`` is active."""
    if mode_type in _installed:
        return
    _installed.add(mode_type)
    _answer_device_hints()
    for name in _RESIZING:
        packet = getattr(aten, name)
        _override(packet.vec, partial(_resizing, packet.default, name not in _NEAREST), mode_type)
    for name in (*_RESIZING, *_DECOMPOSED):
        op = getattr(aten, name).default
        _override(op, partial(_plain, op), mode_type)
    # torch 2.11 has none
    aten.one_hot.default.py_kernels.setdefault(_KEYS[1], _one_hot_by_comparison)
    _override(aten.one_hot.default, _one_hot, mode_type)
    for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"):
        _override(getattr(aten, name).default, _plain_dropout, mode_type)
    for op, kernel in (
        (aten.max_pool1d.default, _max_pool1d),
        (aten.kron.default, _kron),
        (aten.gru_cell.default, gru_cell),
        (aten.ctc_loss.IntList, _ctc_loss),
        (aten.grid_sampler.default, _grid_sampler),
    ):
        # torch has C++ alone
        op.py_kernels.setdefault(_KEYS[1], partial(op._op_dk, _KEYS[1]))
        _override(op, kernel, mode_type)
    for name in MODES:
        for overload in ("input", "data"):
            op = getattr(getattr(aten, name), overload)
            _override(op, partial(recurrent, op), mode_type)


@cache
def is_composite(op: Any) -> bool:
    """Whether autograd decomposes an operator. Inference mode, which has no autograd, leaves it
    whole.
    """
    return isinstance(op, torch._ops.OpOverload) and _has(op, _KEYS[1]) and not _has(op, _CPU)


def _has(op: Any, key: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


@cache
def install_in_inference_mode(mode_type: type) -> None:
    """Lets functionalisation, which is the first to get an operator in inference mode, decompose it
    as autograd does; the kernels apply while a ``mode_type`` is active.
    """
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(_KEYS[1].name):
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace != "aten":
            continue
        op = getattr(getattr(aten, packet), overload or "default")
        if is_composite(op) and (_KEYS[1] in op.py_kernels or not _has(op, _FUNCTIONALIZE)):
            _decompose_first(op, mode_type)
    # its schema hides that it writes to the statistics; torch's Python form shows it
    _decompose_first(aten.native_batch_norm.default, mode_type)


def _decompose_first(op: Any, mode_type: type) -> None:
    previous = op.py_kernels.get(_FUNCTIONALIZE, partial(op._op_dk, _FUNCTIONALIZE))
    kernel = op.py_kernels.get(_KEYS[1]) or partial(op._op_dk, _KEYS[1])
    op.py_kernels[_FUNCTIONALIZE] = _choose(kernel, previous, mode_type)
    op._dispatch_cache.clear()


def _answer_device_hints() -> None:
    """Tells torch's meta kernels the logical device of our fakes; they would assume CUDA."""
    kernels: Any = sys.modules.get("torch._meta_registrations")
    previous = getattr(kernels, "device_hint", None)
    if previous is None:
        return

    def device_hint(tensor: Any) -> str:
        device = getattr(tensor, "fake_device", None)
        return previous(tensor) if device is None else device.type

    kernels.device_hint = device_hint


def _override(op: Any, kernel: Callable[..., Any], mode_type: type) -> None:
    """Puts ``kernel`` before each kernel of ``op``, which it gets as its first argument."""
    for key in _KEYS:
        previous = op.py_kernels.get(key)
        if previous is not None:
            op.py_kernels[key] = _choose(partial(kernel, previous), previous, mode_type)
    op._dispatch_cache.clear()


def _choose(
    kernel: Callable[..., Any], previous: Callable[..., Any], mode_type: type
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        chosen = kernel if isinstance(torch._C._get_dispatch_mode(_FAKE), mode_type) else previous
        return chosen(*args, **kwargs)

    return run


def _plain(op: Any, previous: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C._DisablePythonDispatcher():
        return op(*args, **kwargs)


def _one_hot_by_comparison(classes: Any, num_classes: Any = -1) -> Any:
    if isinstance(num_classes, int) and num_classes == -1:
        num_classes = classes.max().item() + 1
    known = torch.arange(num_classes, dtype=classes.dtype, device=classes.device)
    return classes.unsqueeze(-1).eq(known).to(torch.int64)


def _one_hot(previous: Callable[..., Any], classes: Any, num_classes: Any = -1) -> Any:
    """torch's kernel with eager's contiguous result, and its class check on the CPU."""
    if classes.dtype is not torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if isinstance(num_classes, int) and num_classes == 0:
        raise RuntimeError("Class values must be smaller than num_classes.")
    if classes.device.type == "cpu" and num_classes > 0:
        known = torch.arange(num_classes, device=classes.device)
        classes = known.index_select(0, classes.reshape(-1)).reshape(classes.shape)
    return previous(classes, num_classes).contiguous()


def _plain_dropout(previous: Callable[..., Any], x: Any, p: float, train: bool) -> Any:
    """Dropout with p = 0 returns its input (torch's kernel copies), with p = 1 draws nothing."""
    if not train or p == 0:
        return x
    return x * x.new_zeros(()) if p == 1 else previous(x, p, train)


def _max_pool1d(
    previous: Any,
    x: Any,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """The maxima of rows of an image of one row."""
    if x.dim() not in (2, 3):
        return previous(x, kernel_size, stride, padding, dilation, ceil_mode)
    image = [
        [other, *(given if isinstance(given, (list, tuple)) else [given])]
        for given, other in (
            (kernel_size, 1),
            (stride or kernel_size, 1),
            (padding, 0),
            (dilation, 1),
        )
    ]
    return aten.max_pool2d_with_indices(x.unsqueeze(-2), *image, ceil_mode)[0].squeeze(-2)


def _ctc_loss(
    _: Any,
    scores: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:
    """ATen's composite writes the lengths of the targets into a tensor's memory."""
    batched = scores if scores.dim() == 3 else scores.unsqueeze(1)
    labels = targets.to(scores.device, torch.int64)
    losses, _ = aten._ctc_loss.default(
        batched, labels, input_lengths, target_lengths, blank, zero_infinity
    )
    if zero_infinity:
        losses = torch.where(losses == torch.inf, losses.new_zeros(()), losses)
    if reduction == 1:
        lengths = torch.tensor([max(n, 1) for n in target_lengths], dtype=losses.dtype)
        return (losses / lengths.to(losses.device)).mean()
    if reduction == 2:
        return losses.sum()
    return losses if scores.dim() == 3 else losses.squeeze(0)


def _grid_sampler(_: Any, x: Any, *args: Any) -> Any:
    """ATen's own kernel, which has decompositions; eager calls cuDNN's for some modes."""
    op = aten.grid_sampler_2d if x.dim() == 4 else aten.grid_sampler_3d
    return op.default(x, *args)


def _kron(previous: Any, a: Any, b: Any) -> Any:
    """Every element of ``a`` times ``b``; the operand of fewer dims gets dims of size 1 in
    front.
    """
    rank = max(a.dim(), b.dim())
    rows = [[1] * (rank - x.dim()) + list(x.shape) for x in (a, b)]
    spread = [
        [n for size in rows[0] for n in (size, 1)],
        [n for size in rows[1] for n in (1, size)],
    ]
    product = a.reshape(spread[0]) * b.reshape(spread[1])
    return aten._unsafe_view(product, [m * n for m, n in zip(*rows)])


def _resizing(op: Any, has_align: bool, previous: Any, x: Any, output_size: Any, *rest: Any) -> Any:
    """The ``.vec`` overload: an output size or scale factors, exactly one of them."""
    align, scales = rest if has_align else ((), rest[0])
    if (output_size is None) == (scales is None):
        raise RuntimeError("Must specify exactly one of output_size and scale_factors")
    if output_size is None:
        output_size = [torch.sym_int(s * f) for s, f in zip(x.shape[2:], scales)]
    given = scales if scales is not None else [None] * len(output_size)
    return _plain(op, previous, x, list(output_size), *((align,) if has_align else ()), *given)
