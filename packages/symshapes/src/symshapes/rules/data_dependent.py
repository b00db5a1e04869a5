"""Ops whose result or size needs data: unbacked symbols where allowed, errors otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch

from symshapes.errors import DataDependentError

from .format import like_operand, new_empty, require_equal, same_sizes
from .registry import RULES, bind
from .written import stamp

aten = torch.ops.aten


def require_unbacked(mode: Any, func: Any) -> None:
    """Raises DataDependentError unless the environment allows unbacked symbols."""
    env = mode.shape_env
    if not env.allow_unbacked:
        raise DataDependentError(
            f"{func} needs tensor data", op=str(func), user_line=env.provenance()
        )


def unbacked_size(mode: Any, func: Any, upper: Any = None) -> Any:
    """A fresh size, at most ``upper`` if that is an int. Raises as ``require_unbacked``."""
    if not mode.shape_env.allow_unbacked_sizes:
        require_unbacked(mode, func)
    return mode.shape_env.create_unbacked(lower=0, upper=upper if isinstance(upper, int) else None)


@RULES.register("_local_scalar_dense item")
def local_scalar(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``item()``: the known number, or one unbacked symbol per tensor and version."""
    (x,) = args
    number = x.known_number
    if number is not None:
        return number
    require_unbacked(mode, func)
    return _read_once(x, "item", lambda: _item(mode, func, x))


def _read_once(x: Any, name: str, create: Callable[[], Any]) -> Any:
    """One number per version of the data."""
    version, number = x.numbers.get(name, (None, None))
    if version != (current := stamp(x)):
        x.numbers[name] = current, (number := create())
    return number


def _item(mode: Any, func: Any, x: Any) -> Any:
    env = mode.shape_env
    if x.dtype.is_complex:
        raise DataDependentError(
            "item() of a complex tensor", op=str(func), user_line=env.provenance()
        )
    if x.dtype.is_floating_point:
        return env.create_unbacked_symfloat()
    if x.dtype is torch.bool:
        return env.create_unbacked_symbool()
    return env.create_unbacked(*((0, 255) if x.dtype is torch.uint8 else ()))


@RULES.register("nonzero")
def nonzero(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Column-major, as eager returns it."""
    (x,) = args
    n = _read_once(x, "nonzero", lambda: unbacked_size(mode, func, x.numel()))
    return new_empty(mode, x, (n, x.dim()), (1, n), torch.int64)


@RULES.register("masked_select")
def masked_select(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x, mask = args
    alike = same_sizes(x.shape, mask.shape)
    n = mask.nonzero().shape[0] if alike else unbacked_size(mode, func)
    return new_empty(mode, x, (n,))


@RULES.register("index.Tensor")
def index(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Boolean masks become their nonzero indices; other indexing goes to the meta kernel."""
    x, indices = args
    if not any(map(_is_mask, indices)):
        return NotImplemented
    _check_masks(mode, x, indices)
    plain = [i.nonzero().unbind(1) if _is_mask(i) else (i,) for i in indices]
    return aten.index.Tensor(x, list(chain.from_iterable(plain)))


@RULES.register("index_put index_put_ _unsafe_index_put _index_put_impl_")
def index_put(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The meta kernel after a check of mask sizes. Out of place it writes to a clone."""
    _check_masks(mode, *args[:2])
    if func._schema.is_mutable:
        return NotImplemented
    return like_operand(mode, mode.run_meta(func, args, kwargs), args[0], by=aten.clone.default)


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _check_masks(mode: Any, x: Any, indices: Sequence[Any]) -> None:
    """Raises IndexError for a mask whose size differs from the indexed dims; may add a guard."""
    dim = 0
    for i in indices:
        sizes = i.shape[: max(x.dim() - dim, 0)] if _is_mask(i) else ()
        for d, size in enumerate(sizes):
            if not require_equal(mode.shape_env, size, x.shape[dim + d]):
                raise IndexError(
                    f"The shape of the mask {list(i.shape)} at index {d} does not match the shape "
                    f"of the indexed tensor {list(x.shape)} at index {dim + d}"
                )
        dim += i.dim() if _is_mask(i) else 1


@RULES.register("unique_consecutive unique_dim _unique _unique2")
def unique(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    given = bind(func, args, kwargs)
    x, dim = given["self"], given.get("dim")
    sizes: list[Any] = [None] if dim is None else list(x.shape)
    axis = 0 if dim is None else dim % x.dim()
    n = sizes[axis] = unbacked_size(mode, func, x.numel() if dim is None else x.shape[axis])
    inverse = x.shape if dim is None else (x.shape[axis],)
    results = (
        new_empty(mode, x, sizes),
        new_empty(mode, x, inverse if given.get("return_inverse") else (0,), dtype=torch.int64),
        new_empty(mode, x, (n,) if given.get("return_counts") else (0,), dtype=torch.int64),
    )
    return results[: len(func._schema.returns)]


@RULES.register("repeat_interleave.Tensor")
def repeat_interleave(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    n = kwargs.get("output_size")
    return new_empty(mode, args[0], (unbacked_size(mode, func) if n is None else n,))


@RULES.register("bincount")
def bincount(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    weights, dtype = bind(func, args, kwargs)["weights"], torch.int64
    if weights is not None:
        dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    return new_empty(mode, args[0], (unbacked_size(mode, func),), dtype=dtype)


@RULES.register("equal allclose is_nonzero")
def tensor_predicate(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    require_unbacked(mode, func)
    return mode.shape_env.create_unbacked_symbool()
