"""View ops: static ones run in C++, common symbolic ones here, others in torch's meta kernels."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

import sympy
import torch

from symshapes.expr import FloorDiv

from .format import (
    assume,
    expr,
    format_strides,
    is_contiguous,
    is_fake,
    is_one,
    known_at_least,
    new_empty,
    require_equal,
    same_size,
    same_sizes,
)
from .registry import RULES, RuleTable

aten = torch.ops.aten

Geometry = tuple[list[Any], list[Any], Any]
_SYMBOLIC = RuleTable()  # (mode, tensor, other arguments) -> Geometry | None


@RULES.register(
    "view permute transpose.int t expand unsqueeze squeeze squeeze.dim squeeze.dims slice.Tensor "
    "select.int split.Tensor split_with_sizes unbind.int as_strided diagonal detach alias "
    "_unsafe_view"
)
def view(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A fake over the same storage; a small constant keeps its value."""
    base = args[0]
    if not is_fake(base) or base.fake_mode is not mode:
        return NotImplemented
    if func in _NATIVE or not _has_symbols(base, args):
        out = mode.run_native(func, args, kwargs, base.fake_device)
        value = base.known_value
        if value is not None and is_fake(out):
            with torch._C._DisableTorchDispatch():
                out.remember(func(value, *args[1:], **kwargs))
        return out
    compute = _SYMBOLIC.get(func)
    geometry = None if compute is None or kwargs else compute(mode, *args)
    if geometry is None:
        return NotImplemented
    return mode.run_native(aten.as_strided.default, (base, *geometry), {}, base.fake_device)


_WRITTEN = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}


@RULES.register(*_WRITTEN)
def scatter(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Checks the position as the written view does; the source is not broadcast."""
    base, source, *view_args = args
    if is_fake(base):
        part = mode.run_op(_WRITTEN[func], (base, *view_args), kwargs)
        if source.shape != part.shape:
            sizes = f"src size = {list(source.shape)}, slice size = {list(part.shape)}"
            raise RuntimeError(f"expected src to have a size equal to the slice of self. {sizes}")
    return scatter_to_memory(mode, func, args, kwargs)


@RULES.register("as_strided_scatter")
def scatter_to_memory(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Elements that share memory get their own; meta kernels keep strides of 0, those of scatters
    to other views before torch 2.13.
    """
    base = args[0]
    if is_fake(base) and any(type(step) is int and step == 0 for step in base.stride()):
        return mode.run_op(aten.clone.default, (base,), {})
    return NotImplemented


@RULES.register("view_copy")
def view_copy(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Dense, also of tensors that have no such view."""
    base, size = args
    return mode.run_op(aten.view.default, (new_empty(mode, base, base.shape), size), {})


_NATIVE = {aten.detach.default, aten.alias.default, aten.as_strided.default}


def _has_symbols(base: Any, args: tuple) -> bool:
    if base._has_symbolic_sizes_strides:
        return True
    given = (x for a in args[1:] for x in (a if isinstance(a, (list, tuple)) else (a,)))
    return any(type(x) is torch.SymInt for x in given)


def _geometry(x: Any) -> Geometry:
    return list(x.shape), list(x.stride()), x.storage_offset()


@_SYMBOLIC.register("permute")
def permute(mode: Any, x: Any, dims: list[int]) -> Geometry | None:
    sizes, strides, offset = _geometry(x)
    rank = len(sizes)
    dims = [d % rank for d in dims if -rank <= d < rank]
    if sorted(dims) != list(range(rank)):
        return None
    return [sizes[d] for d in dims], [strides[d] for d in dims], offset


@_SYMBOLIC.register("transpose.int")
def transpose(mode: Any, x: Any, a: int, b: int) -> Geometry | None:
    rank = x.dim()
    if not (-rank <= a < rank and -rank <= b < rank):
        return None
    order = list(range(rank))
    order[a], order[b] = order[b], order[a]
    return permute(mode, x, order)


@_SYMBOLIC.register("t")
def t(mode: Any, x: Any) -> Geometry | None:
    return permute(mode, x, [1, 0]) if x.dim() == 2 else None


@_SYMBOLIC.register("unsqueeze")
def unsqueeze(mode: Any, x: Any, dim: int) -> Geometry | None:
    sizes, strides, offset = _geometry(x)
    rank = len(sizes)
    if not -rank - 1 <= dim <= rank:
        return None
    dim %= rank + 1
    strides.insert(dim, sizes[dim] * strides[dim] if dim < rank else 1)
    sizes.insert(dim, 1)
    return sizes, strides, offset


def unknown(env: Any, *numbers: Any) -> bool:
    """Whether a size or position is data-dependent."""
    return any(
        type(number) is torch.SymInt and number.node.expr.free_symbols & env.unbacked
        for number in numbers
    )


def from_start(env: Any, position: Any, size: Any) -> Any:
    """The position counted from the start; a negative one counts from the end."""
    if env.statically_known(sympy.Ge(expr(position), 0)):
        return position
    return position - size * torch.sym_max(torch.sym_min(position, 0), -1)


def within(env: Any, position: Any, size: Any) -> Any:
    """A slice bound clamped to [0, size]."""
    return torch.sym_min(torch.sym_max(from_start(env, position, size), 0), size)


@_SYMBOLIC.register("select.int")
def select(mode: Any, x: Any, dim: int, index: Any) -> Geometry | None:
    sizes, strides, offset = _geometry(x)
    rank = len(sizes)
    if not -rank <= dim < rank:
        return None
    size, stride = sizes.pop(dim), strides.pop(dim)
    if unknown(mode.shape_env, size, index):
        if not all(
            assume(mode.shape_env, sympy.Ge(expr(size), expr(least)))
            for least in (index + 1, -index)
        ):
            return None
        return sizes, strides, offset + from_start(mode.shape_env, index, size) * stride
    if type(index) is not int:
        return None
    if not known_at_least(mode.shape_env, size, index + 1 if index >= 0 else -index):
        return None
    return sizes, strides, offset + (index if index >= 0 else size + index) * stride


@_SYMBOLIC.register("slice.Tensor")
def slice_(
    mode: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Geometry | None:
    """Bounds are constants within a symbolic dim, or data-dependent."""
    sizes, strides, offset = _geometry(x)
    rank = len(sizes)
    start, end = 0 if start is None else start, sys.maxsize if end is None else end
    if not -rank <= dim < rank or type(step) is not int or step < 1:
        return None
    size = sizes[dim]
    if unknown(mode.shape_env, size, start, end):
        first = within(mode.shape_env, start, size)
        is_whole = type(end) is int and end == sys.maxsize
        last = size if is_whole else within(mode.shape_env, end, size)
        length: Any = (torch.sym_max(last - first, 0) + step - 1) // step
    elif type(start) is not int or type(end) is not int:
        return None
    elif type(size) is int:
        first, last, step = slice(start, end, step).indices(size)
        length = max(0, -(-(last - first) // step))
    else:
        reach = max(
            start if start >= 0 else -start, 0 if end == sys.maxsize else end if end >= 0 else -end
        )
        if not known_at_least(mode.shape_env, size, reach):
            return None
        first = start if start >= 0 else size + start
        last = size if end == sys.maxsize else end if end >= 0 else size + end
        if not known_at_least(mode.shape_env, last - first, 0):
            return None
        length = (last - first + step - 1) // step
    sizes[dim] = length
    offset = offset + first * strides[dim]
    strides[dim] = strides[dim] * step
    return sizes, strides, offset


def _size_or_minus_one(env: Any, wanted: Any) -> Any:
    """An ``expand`` size, guarded to be nonnegative; a negative hint becomes a constant."""
    if type(wanted) is int or known_at_least(env, wanted, 0):
        return wanted
    return wanted if assume(env, sympy.Ge(expr(wanted), 0)) else int(wanted)


@_SYMBOLIC.register("expand")
def expand(mode: Any, x: Any, target: list[Any]) -> Geometry | None:
    sizes, strides, offset = _geometry(x)
    extra = len(target) - len(sizes)
    if extra < 0:
        return None
    target = [_size_or_minus_one(mode.shape_env, wanted) for wanted in target]
    if any(type(wanted) is int and wanted < 0 for wanted in target[:extra]):
        return None  # the meta kernel raises the error
    out_sizes, out_strides = list(target), [0] * extra
    for d, (size, stride) in enumerate(zip(sizes, strides)):
        wanted = target[extra + d]
        if type(wanted) is int and wanted == -1:
            out_sizes[extra + d] = size
            out_strides.append(stride)
        elif is_one(mode.shape_env, size):
            out_strides.append(stride if is_one(mode.shape_env, wanted) else 0)
        elif require_equal(mode.shape_env, size, wanted):
            out_strides.append(stride)
        else:
            return None
    return out_sizes, out_strides, offset


def _product(sizes: Iterable[Any]) -> Any:
    return math.prod(map(expr, sizes), start=sympy.Integer(1))


@_SYMBOLIC.register("view")
def view_contiguous(mode: Any, x: Any, target: list[Any]) -> Geometry | None:
    """A contiguous tensor in another shape; one ``-1`` is inferred."""
    if not is_contiguous(mode, x):
        return None
    env, sizes, total = mode.shape_env, list(target), _product(x.shape)
    holes = [d for d, s in enumerate(sizes) if type(s) is int and s == -1]
    if len(holes) > 1:
        return None
    rest = _product(s for d, s in enumerate(sizes) if d not in holes)
    if holes:
        if not known_at_least(env, env.wrap(rest), 1):
            return None
        quotient = FloorDiv(total, rest)
        sizes[holes[0]] = env.wrap(quotient)
        rest = rest * quotient
    if not require_equal(env, env.wrap(rest), env.wrap(total)):
        return None
    # eager keeps the strides of an empty tensor
    keeps_strides = same_sizes(sizes, x.shape) and any(same_size(size, 0) for size in sizes)
    strides = list(x.stride()) if keeps_strides else format_strides(sizes, False)
    return sizes, strides, x.storage_offset()
