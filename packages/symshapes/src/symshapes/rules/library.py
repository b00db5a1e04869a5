"""Ops that call torch's kernels and whose meta kernel is missing or disagrees with eager."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from symshapes.errors import DataDependentError

from .data_dependent import unbacked_size
from .format import (
    format_strides,
    has_channels_last_strides,
    in_format,
    is_dense,
    is_fake,
    new_empty,
    require_parameters_of,
    same_size,
)
from .registry import RULES, bind

aten = torch.ops.aten
FULL = (torch.float32, torch.float64)
HALF = (torch.float16, torch.bfloat16)


@RULES.register("geqrf")
def geqrf(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Matrices in column-major order, as LAPACK leaves them, and a vector of reflectors."""
    (a,) = args
    *batch, rows, columns = a.shape
    order = mode.empty([*batch, columns, rows], dtype=a.dtype).mT.stride()
    reflectors = new_empty(mode, a, [*batch, torch.sym_min(rows, columns)])
    return new_empty(mode, a, a.shape, order), reflectors


@RULES.register("binomial _sample_dirichlet _dirichlet_grad _standard_gamma _standard_gamma_grad")
def distribution(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Draws of distributions and derivatives of draws, one per element of the first operand."""
    return new_empty(mode, args[0], args[0].shape)


@RULES.register("mkldnn_rnn_layer_backward")
def recurrent_layer_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Gradients in float32; meta kernels before torch 2.13 give the operands' dtype."""
    found = mode.run_meta(func, args, kwargs)
    return tuple(new_empty(mode, t, t.shape, t.stride(), torch.float32) for t in found)


@RULES.register("linalg_lstsq")
def linalg_lstsq(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Solutions are columns of LAPACK's buffer; some drivers' residuals depend on the rank."""
    given = bind(func, args, kwargs)
    a, b = given["self"], given["b"]
    driver = given["driver"] or ("gels" if a.fake_device.type == "cuda" else "gelsy")
    *batch, rows, columns = a.shape
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and list(b.shape) == [*batch, rows])
    count = [] if is_vector else [b.shape[-1]]
    buffer = new_empty(mode, a, [*batch, *count, torch.sym_max(rows, columns)])
    solution = buffer.narrow(-1, 0, columns)
    values, is_tall = driver in ("gelss", "gelsd"), bool(rows > columns)
    if values and is_tall:
        raise DataDependentError(
            f"{func} with driver {driver}: the size of its residuals", op=str(func)
        )
    real = a.dtype.to_real()
    residuals = [*batch, *(count or [1])] if is_tall and driver == "gels" else [0]
    singular_values = [*batch, torch.sym_min(rows, columns)] if values else [0]
    return (
        solution if is_vector else solution.mT,
        new_empty(mode, a, residuals, dtype=real),
        new_empty(mode, a, [0] if driver == "gels" else batch, dtype=torch.int64),
        new_empty(mode, a, singular_values, dtype=real),
    )


@RULES.register("_padded_dense_to_jagged_forward")
def padded_to_jagged(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Rows in one dimension instead of batches and positions."""
    given = bind(func, args, kwargs)
    dense, total = given["dense"], given["total_L"]
    total = unbacked_size(mode, func) if total is None else total
    return new_empty(mode, dense, (total, dense.shape[-1]))


@RULES.register("_cudnn_rnn_backward")
def cudnn_rnn_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A gradient for the input, the states and each weight."""
    given = bind(func, args, kwargs)
    x, hx = given["input"], given["hx"]
    values = (x, hx, hx if given["cx"] is None else given["cx"])
    own, weights = (
        [new_empty(mode, v, v.shape) for v in each] for each in (values, given["weight"])
    )
    return *own, weights


@RULES.register(
    "fake_quantize_per_tensor_affine_cachemask "
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams "
    "fake_quantize_per_channel_affine_cachemask"
)
def fake_quantize(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The rounded values, and a mask of those in range."""
    x = args[0]
    return tuple(new_empty(mode, x, x.shape, x.stride(), dtype) for dtype in (x.dtype, torch.bool))


@RULES.register("max_unpool2d reflection_pad2d replication_pad2d replication_pad3d channel_shuffle")
@RULES.register("reflection_pad2d_backward replication_pad2d_backward replication_pad3d_backward")
def format_of_operand(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """In the memory format of the forward's operand; contiguous on CUDA devices."""
    x = args[1 if func._schema.name.endswith("_backward") else 0]
    result = mode.run_meta(func, args, kwargs)
    keeps = func is aten.roll.default or x.fake_device.type == "cpu"
    return in_format(mode, result, keeps and has_channels_last_strides(mode.shape_env, x))


@RULES.register("reflection_pad3d reflection_pad3d_backward")
def reflection_pad3d(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """In the operand's format on the CPU, which takes channels and three dims for an image's."""
    is_plain = args[0].fake_device.type != "cpu"
    return (mode.run_meta if is_plain else partial(format_of_operand, mode))(func, args, kwargs)


@RULES.register("roll")
def roll(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """In the operand's format; without dims contiguous."""
    rule = format_of_operand if len(args) > 2 or kwargs.get("dims") else dense
    return rule(mode, func, args, kwargs)


@RULES.register("normal.Tensor_Tensor glu_backward")
def dense(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Contiguous, whatever the operand's strides."""
    results = mode.run_meta(func, args, kwargs)
    return pytree.tree_map_only(
        torch.Tensor, lambda result: in_format(mode, result, False), results
    )


@RULES.register("nll_loss2d_forward poisson rrelu_with_noise rrelu_with_noise_functional")
def dense_on_cpu(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Contiguous on the CPU, whatever the operand's strides."""
    if args[0].fake_device.type == "cpu":
        return dense(mode, func, args, kwargs)
    return mode.run_meta(func, args, kwargs)


@RULES.register("_fused_rms_norm_backward")
def dense_on_cuda(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Contiguous on CUDA devices, whatever the operand's strides."""
    if args[0].fake_device.type != "cuda":
        return NotImplemented
    return dense(mode, func, args, kwargs)


@RULES.register("log_sigmoid_forward")
def log_sigmoid_forward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What backward reads is empty on other devices than CPUs, unlike the meta kernel's."""
    result, buffer = dense_on_cpu(mode, func, args, kwargs)
    x = args[0]
    return result, buffer if x.fake_device.type == "cpu" else new_empty(mode, x, [0])


@RULES.register(
    "upsample_nearest1d_backward _upsample_nearest_exact1d_backward upsample_linear1d_backward "
    "_upsample_bicubic2d_aa_backward"
)
def upsample_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Contiguous; the meta kernels would specialise the sizes, or take no symbols."""
    return new_empty(mode, args[0], args[2]) if is_fake(args[0]) else NotImplemented


@RULES.register(
    "fractional_max_pool3d_backward multi_margin_loss_backward multilabel_margin_loss_backward "
    "_ctc_loss_backward _ctc_loss_backward.Tensor"
)
def like_second(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Contiguous, with the sizes of the forward's input."""
    return new_empty(mode, args[1], args[1].shape)


@RULES.register("multi_margin_loss multilabel_margin_loss_forward")
def margin_loss(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The loss of a single row is 0-dim, unlike the meta kernel's."""
    results, target = mode.run_meta(func, args, kwargs), args[1]
    loss, *flags = results if isinstance(results, tuple) else (results,)
    if target.dim() == int(bool(flags)):
        loss = new_empty(mode, loss, ())
    return (loss, *flags) if flags else loss


def _plain_strides(mode: Any, x: Any, per_channel: tuple) -> Any:
    """The result's strides in the plain case, which skips the slow meta kernel; else None.

    Plain: dense, several elements per channel, one dtype (not half on the CPU), matching sizes.
    """
    known = x.dtype in FULL or (x.dtype in HALF and x.fake_device.type == "cuda")
    if (
        not known
        or x.dim() < 2
        or None in per_channel[2:]
        or not all(type(size) is int for size in x.shape)
    ):
        return None
    if not all(
        t is None or (t.dtype is x.dtype and t.dim() == 1 and same_size(t.shape[0], x.shape[1]))
        for t in per_channel
    ):
        return None
    return x.stride() if x.numel() > x.shape[1] > 0 and is_dense(mode, x) else None


@RULES.register(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats "
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training"
)
def native_batch_norm(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """In the operand's memory format; in evaluation the CPU kernel saves no statistics."""
    x, given = args[0], func is not aten._native_batch_norm_legit.no_stats
    # the kernel checks nothing for an empty batch
    if not any(same_size(size, 0) for size in x.shape):
        require_parameters_of(x, *args[1 : 5 if given else 3])
    training = (
        args[5 if given else 3] and func is not aten._native_batch_norm_legit_no_training.default
    )
    device, functional = x.fake_device, func is aten._native_batch_norm_legit_functional.default
    is_known = given and not kwargs and (training or (device.type == "cpu" and not functional))
    if is_known and (strides := _plain_strides(mode, x, args[1:5])) is not None:
        saved, count = x.dtype if x.dtype in FULL else torch.float32, x.shape[1] if training else 0
        sizes = [[count]] * (4 if functional else 2)
        statistics = [new_empty(mode, x, size, dtype=saved) for size in sizes]
        if device.type == "cpu":
            strides = format_strides(x.shape, has_channels_last_strides(mode.shape_env, x))
        return new_empty(mode, x, x.shape, strides), *statistics
    result, *statistics = mode.run_meta(func, args, kwargs)
    if device.type == "cpu":
        result = in_format(mode, result, has_channels_last_strides(mode.shape_env, x))
        if not training:
            statistics[:2] = [new_empty(mode, s, [0]) for s in statistics[:2]]
    return result, *statistics


@RULES.register("native_group_norm")
def native_group_norm(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A dtype check, then the meta kernel; statistics are wide if the parameters are."""
    x, weight, bias = args[:3]
    require_parameters_of(x, weight, bias)
    if all(p is None or p.dtype is x.dtype for p in (weight, bias)):
        return NotImplemented
    result, *statistics = mode.run_meta(func, args, kwargs)
    return result, *[new_empty(mode, x, s.shape, dtype=torch.float32) for s in statistics]


@RULES.register("native_group_norm_backward")
def native_group_norm_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Gradients have the dtypes of operand and weight, which the meta kernel promotes; the first
    has the operand's format on CPUs.
    """
    x, weight = args[1], args[4]
    result, *others = mode.run_meta(func, args, kwargs)
    if result is not None:
        channels_last = x.fake_device.type == "cpu" and has_channels_last_strides(mode.shape_env, x)
        result = new_empty(mode, x, x.shape, format_strides(x.shape, channels_last))
    if weight is not None:
        others = [
            None if item is None else new_empty(mode, weight, weight.shape) for item in others
        ]
    return result, *others


@RULES.register("native_batch_norm_backward")
def native_batch_norm_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Gradients of operand, weight and bias.

    The first has the operand's format; on other devices it is channels-last only in training, for a
    dense operand.
    """
    gradient, x, weight, mask = *args[:3], args[9:]
    is_plain = weight is not None and mask and all(mask[0]) and gradient.dtype is x.dtype
    if is_plain and _plain_strides(mode, x, args[2:5]) is not None:
        shapes = (x.shape, x.shape[1:2], x.shape[1:2])
        results = tuple(new_empty(mode, x, sizes) for sizes in shapes)
    else:
        results = mode.run_meta(func, args, kwargs)
    if results[0] is None:
        return results
    channels_last = has_channels_last_strides(mode.shape_env, x)
    if x.fake_device.type != "cpu":
        channels_last = channels_last and args[7] and is_dense(mode, x)
    return in_format(mode, results[0], channels_last), *results[1:]


@RULES.register("huber_loss soft_margin_loss soft_margin_loss_backward")
def loss_like_operand(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The operand's dtype, whatever the target's is, which the meta kernel promotes."""
    result = mode.run_meta(func, args, kwargs)
    x = args[func is aten.soft_margin_loss_backward.default]
    if result.dtype is x.dtype:
        return result
    return new_empty(mode, x, result.shape, result.stride())


@RULES.register("histogram.bin_ct histogram.bins_tensor")
def histogram(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """n counts and n + 1 edges."""
    bins = bind(func, args, kwargs)["bins"]
    count = bins if isinstance(bins, (int, torch.SymInt)) else bins.shape[0] - 1
    return tuple(new_empty(mode, args[0], [n]) for n in (count, count + 1))


@RULES.register("_histogramdd_bin_edges")
def histogramdd_edges(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    return [new_empty(mode, args[0], [n + 1]) for n in args[1]]


@RULES.register("_histogramdd_from_bin_cts _histogramdd_from_bin_tensors")
def histogramdd_counts(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    sizes = [b.shape[0] - 1 if isinstance(b, torch.Tensor) else b for b in args[1]]
    return new_empty(mode, args[0], sizes)


@RULES.register("_use_cudnn_ctc_loss _use_cudnn_ctc_loss.Tensor")
@RULES.register("_use_miopen_ctc_loss _use_miopen_ctc_loss.Tensor")
def use_library_ctc_loss(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """ATen's own kernel takes whatever the libraries take."""
    return False


@RULES.register("_ctc_loss _ctc_loss.Tensor")
def ctc_loss(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Losses, and per step the log probabilities of labels and the blanks between them."""
    x, targets, _, lengths = args[:4]
    if isinstance(lengths, torch.Tensor):
        states = unbacked_size(mode, func, 2 * targets.shape[-1] + 1)
    else:
        states = 2 * max(lengths, default=0) + 1
    steps, batch = x.shape[:2]
    return new_empty(mode, x, (batch,)), new_empty(mode, x, (batch, steps, states))


@RULES.register("_embedding_bag _embedding_bag_forward_only")
def embedding_bag(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """CPU kernels skip the indices of plain sums; forward-only sums differ in two results."""
    is_full = func is aten._embedding_bag.default
    given = bind(func, args, kwargs)
    weight, indices, offsets = given["weight"], given["indices"], given["offsets"]
    results = aten._embedding_bag.default.py_kernels[torch._C.DispatchKey.Meta](*args, **kwargs)
    if weight.fake_device.type != "cpu":
        return results
    sums, weights = given["mode"] == 0, given["per_sample_weights"]
    is_plain = (
        sums
        and given["padding_idx"] < 0
        and weight.dtype in (torch.float32, *HALF)
        and weight.stride(1) == 1
        and (weights is None or weights.stride(0) == 1)
    )
    each = offsets.new_empty([0 if is_plain else indices.shape[0]])
    if not sums or is_full:
        return (results[0], each, *results[2:])
    return results[0], each, offsets.new_empty(offsets.shape), offsets.new_empty(offsets.shape)


@RULES.register("_fused_sgd_ _fused_sgd_.tensor_lr _fused_adagrad_ _fused_adagrad_.tensor_lr")
@RULES.register("_fused_adam_.tensor_lr _fused_adamw_.tensor_lr")
def fused_step_in_place(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Writes to its arguments and returns nothing."""


@RULES.register("_fused_sgd _fused_sgd.tensor_lr _fused_adagrad _fused_adagrad.tensor_lr")
@RULES.register("_fused_adam.tensor_lr _fused_adamw.tensor_lr")
def fused_step(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The updated leading lists."""
    return tuple([mode.empty_like(t) for t in given] for given in args[: len(func._schema.returns)])
