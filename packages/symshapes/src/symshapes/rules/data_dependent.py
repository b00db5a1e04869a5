"""Ops whose result or size needs data: unbacked symbols where allowed, errors otherwise."""

from __future__ import annotations

from typing import Any

import torch

from symshapes.errors import DataDependentError

from .registry import RuleTable

aten = torch.ops.aten
RULES = RuleTable()


def require_unbacked(mode: Any, func: Any) -> None:
    """Raises DataDependentError unless the environment allows unbacked symbols."""
    env = mode.shape_env
    if not env.allow_unbacked:
        raise DataDependentError(f"{func} needs tensor data", op=str(func), user_line=env.provenance())


def unbacked_size(mode: Any, func: Any, upper: Any = None) -> Any:
    """A new size of at most ``upper``, if that is a number. Raises DataDependentError as ``require_unbacked`` does."""
    require_unbacked(mode, func)
    return mode.shape_env.create_unbacked(lower=0, upper=upper if isinstance(upper, int) else None)


@RULES.register(aten._local_scalar_dense.default)
def local_scalar(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``item()``: a constant's value, or one unbacked symbol per tensor and version."""
    (x,) = args
    if x.known_value is not None:
        return x.known_value.item()
    require_unbacked(mode, func)
    memo, version = x.item_memo, x._version
    if memo is not None and memo[0] == version:
        return memo[1]
    env = mode.shape_env
    if x.dtype.is_complex:
        raise DataDependentError("item() of a complex tensor", op=str(func), user_line=env.provenance())
    if x.dtype.is_floating_point:
        value: Any = env.create_unbacked_symfloat()
    elif x.dtype is torch.bool:
        value = env.create_unbacked_symbool()
    else:
        value = env.create_unbacked(*((0, 255) if x.dtype is torch.uint8 else ()))
    x.item_memo = (version, value)
    return value


@RULES.register(aten.nonzero.default)
def nonzero(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Column-major, as eager returns it."""
    (x,) = args
    n = unbacked_size(mode, func, x.numel())
    return mode.empty((n, x.dim()), (1, n), dtype=torch.int64, device=x.fake_device)


@RULES.register(aten.masked_select.default)
def masked_select(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x, _ = args
    return mode.empty((unbacked_size(mode, func),), dtype=x.dtype, device=x.fake_device)


@RULES.register(aten.index.Tensor)
def index(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Boolean masks become their nonzero indices; other indexing goes to the meta kernel."""
    x, indices = args
    if not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return NotImplemented
    plain: list[Any] = []
    for i in indices:
        if i is not None and i.dtype in (torch.bool, torch.uint8):
            plain += i.nonzero().unbind(1)
        else:
            plain.append(i)
    return aten.index.Tensor(x, plain)


@RULES.register(aten._unique2.default)
def unique2(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x = args[0]
    flags = dict(zip(("sorted", "return_inverse", "return_counts"), args[1:])) | kwargs
    n = unbacked_size(mode, func, x.numel())
    device = x.fake_device
    inverse = x.shape if flags.get("return_inverse", False) else (0,)
    counts = (n,) if flags.get("return_counts", False) else (0,)
    return (
        mode.empty((n,), dtype=x.dtype, device=device),
        mode.empty(inverse, dtype=torch.int64, device=device),
        mode.empty(counts, dtype=torch.int64, device=device),
    )


@RULES.register(aten.repeat_interleave.Tensor)
def repeat_interleave(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x = args[0]
    n = kwargs.get("output_size")
    return mode.empty((unbacked_size(mode, func) if n is None else n,), dtype=x.dtype, device=x.fake_device)


@RULES.register(aten.bincount.default)
def bincount(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x = args[0]
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    return mode.empty((unbacked_size(mode, func),), dtype=dtype, device=x.fake_device)


@RULES.register(aten.equal.default, aten.allclose.default, aten.is_nonzero.default)
def tensor_predicate(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    require_unbacked(mode, func)
    return mode.shape_env.create_unbacked_symbool()
