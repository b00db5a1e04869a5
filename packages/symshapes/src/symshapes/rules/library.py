"""Ops that call torch's kernels and whose meta kernel is missing or disagrees with eager."""

from __future__ import annotations

from typing import Any

import torch

from symshapes.errors import DataDependentError

from .data_dependent import unbacked_size
from .format import (
    format_strides,
    has_channels_last_strides,
    is_dense,
    require_parameters_of,
    restrided,
    same_size,
)
from .registry import RuleTable

aten = torch.ops.aten
RULES = RuleTable()
FULL = (torch.float32, torch.float64)
HALF = (torch.float16, torch.bfloat16)


@RULES.register("geqrf")
def geqrf(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Matrices in column-major order, as LAPACK leaves them, and a vector of reflectors."""
    (a,) = args
    *batch, rows, columns = a.shape
    order = mode.empty([*batch, columns, rows], dtype=a.dtype).mT.stride()
    factors = mode.empty(a.shape, order, dtype=a.dtype, device=a.fake_device)
    return factors, mode.empty(
        [*batch, torch.sym_min(rows, columns)], dtype=a.dtype, device=a.fake_device
    )


@RULES.register("linalg_lstsq")
def linalg_lstsq(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Solutions are columns of LAPACK's buffer; some drivers' residuals depend on the rank."""
    given = dict(zip(("self", "b", "rcond"), args)) | kwargs
    a, b, device = given["self"], given["b"], given["self"].fake_device
    driver = given.get("driver") or ("gels" if device.type == "cuda" else "gelsy")
    *batch, rows, columns = a.shape
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and list(b.shape) == [*batch, rows])
    count = [] if is_vector else [b.shape[-1]]
    buffer = mode.empty(
        [*batch, *count, torch.sym_max(rows, columns)], dtype=a.dtype, device=device
    )
    solution = buffer.narrow(-1, 0, columns)
    values, is_tall = driver in ("gelss", "gelsd"), bool(rows > columns)
    if values and is_tall:
        raise DataDependentError(
            f"{func} with driver {driver}: the size of its residuals", op=str(func)
        )
    real = a.dtype.to_real()
    return (
        solution if is_vector else solution.mT,
        mode.empty(
            [*batch, *(count or [1])] if is_tall and driver == "gels" else [0],
            dtype=real,
            device=device,
        ),
        mode.empty([0] if driver == "gels" else batch, dtype=torch.int64, device=device),
        mode.empty(
            [*batch, torch.sym_min(rows, columns)] if values else [0], dtype=real, device=device
        ),
    )


@RULES.register(
    "fake_quantize_per_tensor_affine_cachemask "
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams "
    "fake_quantize_per_channel_affine_cachemask"
)
def fake_quantize(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The rounded values, and a mask of those in range."""
    x = args[0]
    return tuple(
        mode.empty(x.shape, x.stride(), dtype=dtype, device=x.fake_device)
        for dtype in (x.dtype, torch.bool)
    )


@RULES.register("max_unpool2d reflection_pad2d replication_pad2d replication_pad3d channel_shuffle")
def in_format(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """In the operand's memory format."""
    return _in_format_of(mode, mode.run_meta(func, args, kwargs), args[0])


@RULES.register("reflection_pad2d_backward replication_pad2d_backward replication_pad3d_backward")
def in_format_of_second(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """In the memory format of forward's operand."""
    return _in_format_of(mode, mode.run_meta(func, args, kwargs), args[1])


def _in_format_of(mode: Any, result: Any, like: Any) -> Any:
    return restrided(
        mode, result, format_strides(result.shape, has_channels_last_strides(mode.shape_env, like))
    )


@RULES.register("roll")
def roll(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """In the operand's format; without dims contiguous."""
    return (in_format if len(args) > 2 or kwargs.get("dims") else dense)(mode, func, args, kwargs)


@RULES.register(
    "log_sigmoid_forward nll_loss2d_forward normal.Tensor_Tensor poisson rrelu_with_noise "
    "rrelu_with_noise_functional"
)
def dense(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Contiguous on the CPU, whatever the operand's strides."""
    results = mode.run_meta(func, args, kwargs)
    if args[0].fake_device.type != "cpu":
        return results
    if isinstance(results, tuple):
        return tuple(restrided(mode, r, format_strides(r.shape, False)) for r in results)
    return restrided(mode, results, format_strides(results.shape, False))


@RULES.register(
    "upsample_nearest1d_backward _upsample_nearest_exact1d_backward upsample_linear1d_backward"
)
def upsample_1d_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Contiguous; the meta kernel would specialise the sizes."""
    gradient, sizes = args[0], args[2]
    return mode.empty(sizes, dtype=gradient.dtype, device=gradient.fake_device)


@RULES.register(
    "fractional_max_pool3d_backward multi_margin_loss_backward multilabel_margin_loss_backward"
)
def like_second(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Contiguous, with the sizes of the forward's input."""
    x = args[1]
    return mode.empty(x.shape, dtype=x.dtype, device=x.fake_device)


@RULES.register("multi_margin_loss multilabel_margin_loss_forward")
def margin_loss(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The loss of a single row is 0-dim, unlike the meta kernel's."""
    results, target = mode.run_meta(func, args, kwargs), args[1]
    loss, *flags = results if isinstance(results, tuple) else (results,)
    if target.dim() == int(bool(flags)):
        loss = mode.empty((), dtype=loss.dtype, device=loss.fake_device)
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
    "_native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training"
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
        statistics = (
            mode.empty([count], dtype=saved, device=device) for _ in range(4 if functional else 2)
        )
        if device.type == "cpu":
            strides = format_strides(x.shape, has_channels_last_strides(mode.shape_env, x))
        return mode.empty(x.shape, strides, dtype=x.dtype, device=device), *statistics
    results = mode.run_meta(func, args, kwargs)
    if x.fake_device.type != "cpu":
        return results
    strides = format_strides(x.shape, has_channels_last_strides(mode.shape_env, x))
    results = (restrided(mode, results[0], strides), *results[1:])
    if training:
        return results
    return (
        results[0],
        *(mode.empty([0], dtype=s.dtype, device=x.fake_device) for s in results[1:3]),
        *results[3:],
    )


@RULES.register("native_group_norm")
def native_group_norm(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A dtype check, then the meta kernel."""
    require_parameters_of(*args[:3])
    return NotImplemented


@RULES.register("native_batch_norm_backward")
def native_batch_norm_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Gradients of operand, weight and bias.

    The first has the operand's format; on other devices it is channels-last only in training, for a
    dense operand.
    """
    gradient, x, weight, mask = args[0], args[1], args[2], args[9:]
    is_plain = weight is not None and mask and all(mask[0]) and gradient.dtype is x.dtype
    if is_plain and _plain_strides(mode, x, args[2:5]) is not None:
        results = tuple(
            mode.empty(sizes, dtype=x.dtype, device=x.fake_device)
            for sizes in (x.shape, *[x.shape[1:2]] * 2)
        )
    else:
        results = mode.run_meta(func, args, kwargs)
    if results[0] is None:
        return results
    channels_last = has_channels_last_strides(mode.shape_env, x)
    if x.fake_device.type != "cpu":
        channels_last = channels_last and args[7] and is_dense(mode, x)
    return restrided(mode, results[0], format_strides(x.shape, channels_last)), *results[1:]


@RULES.register("histogram.bin_ct histogram.bins_tensor")
def histogram(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """n counts and n + 1 edges."""
    x = args[0]
    bins = args[1] if len(args) > 1 else kwargs.get("bins", 100)
    count = bins if isinstance(bins, (int, torch.SymInt)) else bins.shape[0] - 1
    return tuple(mode.empty([n], dtype=x.dtype, device=x.fake_device) for n in (count, count + 1))


@RULES.register("_histogramdd_bin_edges")
def histogramdd_edges(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x, bins = args[:2]
    return [mode.empty([n + 1], dtype=x.dtype, device=x.fake_device) for n in bins]


@RULES.register("_histogramdd_from_bin_cts _histogramdd_from_bin_tensors")
def histogramdd_counts(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x, bins = args[:2]
    sizes = [b.shape[0] - 1 if isinstance(b, torch.Tensor) else b for b in bins]
    return mode.empty(sizes, dtype=x.dtype, device=x.fake_device)


@RULES.register("_ctc_loss.Tensor")
def ctc_loss(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Losses, and per step the log probabilities of labels and the blanks between them."""
    x, targets = args[:2]
    states = unbacked_size(mode, func, 2 * targets.shape[-1] + 1)
    steps, batch = x.shape[:2]
    return tuple(
        mode.empty(size, dtype=x.dtype, device=x.fake_device)
        for size in ((batch,), (batch, steps, states))
    )


@RULES.register("_ctc_loss_backward")
@RULES.register("_ctc_loss_backward.Tensor")
def ctc_loss_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Dense, shaped like the log probabilities."""
    return mode.empty(args[1].shape, dtype=args[1].dtype, device=args[1].fake_device)


@RULES.register("_embedding_bag _embedding_bag_forward_only")
def embedding_bag(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """CPU kernels skip the indices of plain sums; forward-only sums differ in two results."""
    is_full = func is aten._embedding_bag.default
    given = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
    weight, indices, offsets = given["weight"], given["indices"], given["offsets"]
    results = aten._embedding_bag.default.py_kernels[torch._C.DispatchKey.Meta](*args, **kwargs)
    if weight.fake_device.type != "cpu":
        return results
    sums, weights = given.get("mode", 0) == 0, given.get("per_sample_weights")
    is_plain = (
        sums
        and given.get("padding_idx", -1) < 0
        and weight.dtype in (torch.float32, *HALF)
        and weight.stride(1) == 1
    )
    is_plain = is_plain and (weights is None or weights.stride(0) == 1)
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
