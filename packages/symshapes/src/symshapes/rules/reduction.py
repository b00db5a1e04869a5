"""Reductions, softmax and layer norm: the results are always contiguous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .checked import require_dim
from .format import is_fake, new_empty, require_equal, require_parameters_of
from .registry import RULES, bind

aten = torch.ops.aten


def reduced_sizes(x: Any, dims: Any, keepdim: bool) -> list[Any] | None:
    """Sizes after reducing ``dims`` (all when None or empty), or None for a bad dimension."""
    rank = x.dim()
    if dims is None or dims == []:
        dims = range(rank)
    if any(not -max(rank, 1) <= d < max(rank, 1) for d in dims):
        return None
    reduced = {d % max(rank, 1) for d in dims}
    if len(reduced) != len(list(dims)):
        return None
    if keepdim:
        return [1 if d in reduced else s for d, s in enumerate(x.shape)]
    return [s for d, s in enumerate(x.shape) if d not in reduced]


def _all_nonempty(x: Any) -> bool:
    return all(type(s) is not int or s > 0 for s in x.shape) and not any(
        type(s) is not int and s.node.hint is None for s in x.shape
    )


Dtype = Callable[[torch.dtype, torch.dtype | None], torch.dtype | None]


def _reductions(names: str, *dtypes_of: Dtype, nonempty: bool = False) -> None:
    """Registers reductions with one result per function of the operand's and the given dtype, which
    is None outside the rule's case. ``nonempty``: the kernel refuses an empty tensor.
    """

    @RULES.register(names)
    def rule(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        x = args[0]
        dtypes = [dtype_of(x.dtype, kwargs.get("dtype")) for dtype_of in dtypes_of]
        if None in dtypes or (nonempty and not _all_nonempty(x)):
            return NotImplemented
        given = bind(func, args, kwargs)
        dims = given.get("dim")
        dims = [dims] if isinstance(dims, int) else dims
        sizes = reduced_sizes(x, dims, bool(given.get("keepdim")))
        if sizes is None:
            return NotImplemented
        results = [new_empty(mode, x, sizes, dtype=dtype) for dtype in dtypes]
        return tuple(results) if len(results) > 1 else results[0]


def _accumulated(own: torch.dtype, given: torch.dtype | None) -> torch.dtype:
    """Integers accumulate in int64."""
    return given or (own if own.is_floating_point or own.is_complex else torch.int64)


def _floating(own: torch.dtype, given: torch.dtype | None) -> torch.dtype | None:
    dtype = given or own
    return dtype if dtype.is_floating_point else None


def _own(own: torch.dtype, given: torch.dtype | None) -> torch.dtype:
    return own


def _position(own: torch.dtype, given: torch.dtype | None) -> torch.dtype:
    return torch.int64


_reductions("sum sum.dim_IntList prod prod.dim_int", _accumulated)
_reductions("mean mean.dim var.correction std.correction", _floating)
_reductions("var_mean.correction", _floating, _floating)
_reductions("any all any.dim all.dim", lambda own, _: None if own is torch.uint8 else torch.bool)
_reductions("amax amin", _own, nonempty=True)
_reductions("argmax argmin", _position, nonempty=True)
_reductions("max.dim min.dim", _own, _position, nonempty=True)


@RULES.register("_softmax _log_softmax")
def softmax(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x, dim, half_to_float = args
    if not (x.dtype.is_floating_point or x.dtype.is_complex) and x.fake_device.type != "meta":
        raise NotImplementedError(f"softmax of {x.dtype}: meta kernels alone have it")
    require_dim(x, dim)  # the meta kernel takes any
    if half_to_float or not x.dtype.is_floating_point:
        return NotImplemented
    return new_empty(mode, x, x.shape)


@RULES.register("_log_softmax_backward_data")
def log_softmax_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    result = mode.run_meta(func, args, kwargs)
    return new_empty(mode, result, result.shape)


@RULES.register("native_layer_norm")
def native_layer_norm(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """One dtype for all operands: output like the input, statistics over the outer dimensions."""
    x, normalized, weight, bias, _ = args
    rank = len(normalized)
    require_parameters_of(x, weight, bias)
    if (
        any(p is not None and p.dtype is not x.dtype for p in (weight, bias))
        or not 1 <= rank <= x.dim()
    ):
        return NotImplemented
    if x.fake_device.type != "cpu" and x.dtype in (torch.float16, torch.bfloat16):
        return NotImplemented  # CUDA keeps statistics in float32
    shapes = [x.shape[-rank:], *(p.shape for p in (weight, bias) if p is not None)]
    for shape in shapes:
        if len(shape) != rank or not all(
            require_equal(mode.shape_env, a, b) for a, b in zip(shape, normalized)
        ):
            return NotImplemented
    statistics = [*x.shape[:-rank], *[1] * rank]
    sizes = (x.shape, statistics, statistics)
    return tuple(new_empty(mode, x, s) for s in sizes)


@RULES.register("native_layer_norm_backward")
def native_layer_norm_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    _, x, _, _, _, weight, bias, mask = args
    if not is_fake(x) or any(p is not None and p.dtype is not x.dtype for p in (weight, bias)):
        return NotImplemented
    return tuple(
        new_empty(mode, x, source.shape) if wanted and source is not None else None
        for source, wanted in zip((x, weight, bias), mask)
    )
