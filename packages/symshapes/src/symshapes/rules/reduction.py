"""Reductions, softmax and layer norm: the results are always contiguous."""

from __future__ import annotations

from typing import Any

import torch

from .checked import require_dim
from .format import is_fake, new_empty, require_equal, require_parameters_of
from .registry import RuleTable, bind

aten = torch.ops.aten
RULES = RuleTable()


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


def _reduce(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    given = bind(func, args, kwargs)
    dims = given.get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    sizes = reduced_sizes(args[0], dims, bool(given.get("keepdim")))
    return NotImplemented if sizes is None else new_empty(mode, args[0], sizes, dtype=dtype)


@RULES.register("sum sum.dim_IntList prod prod.dim_int")
def total(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Integers accumulate in int64."""
    x = args[0]
    own = x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64
    return _reduce(mode, func, args, kwargs, kwargs.get("dtype") or own)


@RULES.register("mean mean.dim var.correction std.correction")
def mean(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    dtype = kwargs.get("dtype") or args[0].dtype
    return _reduce(mode, func, args, kwargs, dtype) if dtype.is_floating_point else NotImplemented


@RULES.register("var_mean.correction")
def var_mean(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    first, second = (mean(mode, func, args, kwargs) for _ in range(2))
    return NotImplemented if first is NotImplemented else (first, second)


def _all_nonempty(x: Any) -> bool:
    return all(type(s) is not int or s > 0 for s in x.shape) and not any(
        type(s) is not int and s.node.hint is None for s in x.shape
    )


@RULES.register("amax amin")
def extremum(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    if _all_nonempty(args[0]):
        return _reduce(mode, func, args, kwargs, args[0].dtype)
    return NotImplemented


@RULES.register("any all any.dim all.dim")
def truth(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    if args[0].dtype is torch.uint8:
        return NotImplemented
    return _reduce(mode, func, args, kwargs, torch.bool)


@RULES.register("argmax argmin")
def position(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    if _all_nonempty(args[0]):
        return _reduce(mode, func, args, kwargs, torch.int64)
    return NotImplemented


@RULES.register("max.dim min.dim")
def extremum_with_position(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not _all_nonempty(x):
        return NotImplemented
    values, indices = (_reduce(mode, func, args, kwargs, dtype) for dtype in (x.dtype, torch.int64))
    return NotImplemented if values is NotImplemented else (values, indices)


@RULES.register("_softmax _log_softmax")
def softmax(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x, dim, half_to_float = args
    if not (x.dtype.is_floating_point or x.dtype.is_complex) and x.fake_device.type != "meta":
        raise NotImplementedError(f"softmax of {x.dtype}: meta kernels alone have it")
    require_dim(x, dim)  # the meta kernel takes any
    if half_to_float or not x.dtype.is_floating_point:
        return NotImplemented
    return new_empty(mode, x, x.shape)


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
