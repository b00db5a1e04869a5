"""What every decomposition does to its operands: conversion, promotion, broadcasting, kept dims.

All functions work in the three readings: real tensors, ``TensorMeta``s, graph values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from primops import prims
from primops.meta import Size
from primops.prim import Traced
from primops.promotion import (
    HALF_DTYPES,
    INTEGER_DTYPES,
    compute_dtype,
    is_integral,
    is_number,
    result_dtype,
    to_float_dtype,
)
from primops.registry import DecompositionTable, Op, Rule
from primops.shapes import broadcast_shapes, resized, same_shape, wrap_dims

# A real tensor, a TensorMeta, or a graph value: anything with shape, dtype, device, ndim.
Tensor = Any
# A Python or symbolic number.
Scalar = Any
WIDE_INTEGERS = INTEGER_DTYPES - {torch.int8, torch.uint8}


def full(shape: Sequence[Size], value: Scalar, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of one number, converted to ``dtype`` as ``torch.full`` does."""
    if isinstance(value, (int, float)):
        if dtype is torch.bool:
            value = bool(value)
        elif not (dtype.is_floating_point or dtype.is_complex):
            value = int(value)
    return prims.full(shape=tuple(shape), value=value, dtype=dtype, device=device)


def zeros(shape: Sequence[Size], like: Tensor) -> Tensor:
    """Zeros of the dtype and on the device of ``like``."""
    return full(shape, 0, like.dtype, like.device)


def full_like(a: Tensor, value: Scalar, dtype: torch.dtype | None = None) -> Tensor:
    """``full`` with the shape, device and (unless given) dtype of ``a``."""
    return full(a.shape, value, dtype or a.dtype, a.device)


def to_dtype(a: Tensor, dtype: torch.dtype) -> Tensor:
    """``a`` converted; numbers and values of that dtype as they are."""
    if is_number(a) or a.dtype is dtype:
        return a
    if isinstance(a, Traced) and a.dtype in HALF_DTYPES:
        wide = a.widened()
        if wide is not None and (dtype.is_floating_point or dtype.is_complex):
            return to_dtype(wide, dtype)
    return prims.convert(a, dtype=dtype)


def round_to(a: Tensor, dtype: torch.dtype) -> Tensor:
    """``a`` in the result dtype of an operator that computed in a wider one."""
    if a.dtype is dtype:
        return a
    if isinstance(a, Traced) and dtype in HALF_DTYPES and a.dtype is torch.float32:
        return a.rounded(dtype)
    return prims.convert(a, dtype=dtype)


def rounded(a: Tensor, dtype: torch.dtype) -> Tensor:
    """``a`` with what rounding to ``dtype`` leaves of it, where eager stores a step of its
    computation.
    """
    return to_dtype(round_to(a, dtype), a.dtype)


def widen(a: Tensor) -> Tensor:
    """float16 and bfloat16 as float32, others as they are."""
    return to_dtype(a, compute_dtype(a.dtype))


def exact(a: Tensor, dtype: torch.dtype) -> Tensor:
    """``a`` converted after eager's roundings: for operators whose result jumps, where a rounding
    that is left out of an operand could change it by more than the rounding.
    """
    return a if is_number(a) or a.dtype is dtype else prims.convert(a, dtype=dtype)


def widen_exact(a: Tensor) -> Tensor:
    """:func:`widen` after eager's roundings."""
    return exact(a, compute_dtype(a.dtype))


def to_bool(a: Tensor) -> Tensor:
    """``a != 0``."""
    if is_number(a):
        return bool(a)
    return to_dtype(a, torch.bool)


def broadcast_to(a: Tensor, shape: Sequence[Size]) -> Tensor:
    """``a`` repeated along new leading dims and dims of size 1; numbers as they are."""
    if is_number(a) or same_shape(a.shape, shape):
        return a
    missing = len(shape) - a.ndim
    return prims.broadcast_in_dim(a, shape=tuple(shape), dims=tuple(range(missing, len(shape))))


def broadcast(*operands: Any) -> list[Any]:
    """All tensor operands in their common shape."""
    shapes = [x.shape for x in operands if not is_number(x)]
    if all(same_shape(shape, shapes[0]) for shape in shapes[1:]):
        return list(operands)
    common = broadcast_shapes(*shapes)
    return [broadcast_to(x, common) for x in operands]


def wrapped(number: Scalar, dtype: torch.dtype) -> Scalar:
    """A number as an element of ``dtype``: integers wrap around, floats are truncated for
    integers.
    """
    if dtype not in INTEGER_DTYPES or not isinstance(number, (int, float)):
        return number
    limits, number = torch.iinfo(dtype), int(number)
    if limits.min <= number <= limits.max:
        return number
    return (number - limits.min) % 2**limits.bits + limits.min


def can_hold(dtype: torch.dtype, *numbers: Any) -> bool:
    """Whether ATen converts all numbers (others than Python's are not looked at) to elements of
    ``dtype`` where it checks the range, as for the arguments of ``clamp`` and ``fill``.
    """
    if dtype is torch.bool or dtype.is_complex:
        return True
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    for number in numbers:
        if not isinstance(number, (int, float)):
            continue
        if dtype.is_floating_point and not math.isfinite(number):
            continue
        # negative integers wrap around to unsigned ones
        wraps = isinstance(number, int) and not dtype.is_signed
        if not (-info.max if wraps else info.min) <= number <= info.max:
            return False
    return True


def as_operand(
    a: Any, dtype: torch.dtype, compute: torch.dtype, convert: Callable[..., Any] = to_dtype
) -> Any:
    """An operand of an operator whose result has ``dtype``, in the dtype that it computes in."""
    if is_number(a):
        return wrapped(a, dtype)
    if dtype in HALF_DTYPES and a.ndim and a.dtype in WIDE_INTEGERS:
        # such integers are rounded first, as the operator's own operands are
        a = prims.convert(a, dtype=dtype)
    return convert(a, compute)


def narrowed(number: Scalar, *operands: Any) -> Scalar:
    """A number as most of ATen's CPU kernels on float16 and bfloat16 see it: rounded to the dtype
    of their tensors. Those of products and quotients, and CUDA's, take it in float32.
    """
    dtype = result_dtype(*operands)
    is_rounded = (
        isinstance(number, float) and dtype in HALF_DTYPES and device_of(*operands).type == "cpu"
    )
    return torch.tensor(number, dtype=dtype).item() if is_rounded else number


def narrowed_operand(x: Any, *operands: Any) -> Any:
    """An operand, narrowed where it is a number; a symbolic one is a tensor then."""
    device = device_of(*operands)
    if isinstance(x, torch.SymFloat) and device.type == "cpu":
        return full((), x, result_dtype(*operands), device)
    return narrowed(x, *operands)


def device_of(*operands: Any) -> torch.device:
    """The device of the tensors, where a scalar of the CPU counts least."""
    tensors = [x for x in operands if not is_number(x)]
    return max(tensors, key=lambda x: x.ndim).device


def elementwise(
    body: Callable[..., Tensor], *operands: Any, to_float: bool = False, narrow: bool = False,
    only_floats: bool = False, jumps: bool = False, keeps_scalar: Sequence[str] = (),
) -> Tensor:  # fmt: skip
    """``body`` on promoted, widened, broadcast operands; its result in the promoted dtype.

    ``to_float``: integers become floats. ``narrow``: numbers are :func:`narrowed`. A bool result
    stays bool. ``only_floats``: integers stay a call, since eager's kernel refuses them.
    ``jumps``: the operands are :func:`exact`. ``keeps_scalar``: the devices on which an
    operand without dims that is on the CPU is not rounded to the dtype of the others: on CPUs the
    second one, on CUDA devices any.
    """
    dtype = result_dtype(*operands)
    if only_floats and is_integral(dtype):
        return NotImplemented
    if to_float:
        dtype = to_float_dtype(dtype)
    compute = compute_dtype(dtype)
    if narrow and dtype in HALF_DTYPES:
        operands = tuple(narrowed_operand(x, *operands) for x in operands)
    if dtype in HALF_DTYPES:
        device = device_of(*operands).type
        keeps = device in keeps_scalar
        operands = tuple(
            _as_scalar(x, dtype, keeps and (i == 1 or device == "cuda"))
            for i, x in enumerate(operands)
        )
    convert = exact if jumps else to_dtype
    result = body(*broadcast(*[as_operand(x, dtype, compute, convert) for x in operands]))
    return result if result.dtype is torch.bool else round_to(result, dtype)


def is_scalar_on_cpu(a: Tensor) -> bool:
    """Whether ATen's kernels of products and quotients may take a tensor as a number."""
    return not a.ndim and a.device.type == "cpu"


def _as_scalar(x: Any, dtype: torch.dtype, keeps: bool) -> Any:
    """An operand of a result of ``dtype``: rounded if it is a tensor of another floating dtype
    without dims, unless it is to be kept and is on the CPU.
    """
    if is_number(x) or x.ndim or not x.dtype.is_floating_point:
        return x
    return x if keeps and is_scalar_on_cpu(x) else exact(x, dtype)


def unary(
    table: DecompositionTable, names: str, body: Callable[..., Tensor], **options: Any
) -> Rule:
    """Registers an elementwise rule of one operand for the operators ``names``."""
    return table.register(*names.split())(lambda self: elementwise(body, self, **options))


def binary(
    table: DecompositionTable, names: str, body: Callable[..., Tensor], **options: Any
) -> Rule:
    """Registers an elementwise rule of two operands for the operators ``names``."""
    return table.register(*names.split())(
        lambda self, other: elementwise(body, self, other, **options)
    )


def pointwise(
    table: DecompositionTable, *ops: Op, steps: bool = False, **options: Any
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Decorator that registers a function of corresponding elements as the rule of ``ops``.

    Its first parameters annotated ``Tensor`` or ``Operand`` are operands of :func:`elementwise`, to
    which ``options`` go. ``steps``: its keyword ``step`` rounds a value to the result's dtype, as
    eager does between the steps of its computation.
    """

    def add(body: Callable[..., Tensor]) -> Callable[..., Tensor]:
        kinds = body.__annotations__.items()
        names = [name for name, kind in kinds if kind in ("Tensor", "Operand") and name != "return"]
        count = len(names)

        @table.register(*ops)
        def rule(*args: Any, **rest: Any) -> Tensor:
            operands = (*args[:count], *(rest.pop(name) for name in names[len(args) :]))
            if steps:
                dtype = result_dtype(*operands)
                dtype = to_float_dtype(dtype) if options.get("to_float") else dtype
                rest["step"] = partial(rounded, dtype=dtype)
            return elementwise(
                lambda *wide: body(*wide, *args[count:], **rest), *operands, **options
            )

        return rule

    return add


def select(cond: Tensor, a: Any, b: Any, dtype: torch.dtype) -> Tensor:
    """``where`` for operands of one shape of which both may be numbers."""
    if is_number(a) and is_number(b):
        a = full_like(cond, a, dtype)
    return prims.where(cond, a, b)


def unsqueeze(a: Tensor, *positions: int) -> Tensor:
    """``a`` with dims of size 1 at these positions of the result."""
    shape = list(a.shape)
    for position in sorted(positions):
        shape.insert(position, 1)
    return prims.reshape(a, shape=tuple(shape))


def kept(reduced: Tensor, dims: Sequence[int]) -> Tensor:
    """The result of a reduction with its dims back as size 1."""
    return unsqueeze(reduced, *dims) if dims else reduced


def spread(reduced: Tensor, shape: Sequence[Size], dims: Sequence[int]) -> Tensor:
    """The result of a reduction over ``dims`` repeated to the shape from before."""
    rest = tuple(dim for dim in range(len(shape)) if dim not in dims)
    return prims.broadcast_in_dim(reduced, shape=tuple(shape), dims=rest)


def reduce(
    prim: Callable[..., Tensor], a: Tensor, dims: int | Sequence[int] | None, keepdim: bool
) -> Tensor:
    """A reduction prim with ATen's dims argument."""
    wrapped = wrap_dims(dims, a.ndim)
    result = prim(a, dims=wrapped)
    return kept(result, wrapped) if keepdim else result


def along(vector: Tensor, shape: Sequence[Size], dim: int) -> Tensor:
    """A vector along ``dim`` of ``shape``, repeated over the other dims."""
    return prims.broadcast_in_dim(vector, shape=tuple(shape), dims=(dim,))


def over(number: Tensor, shape: Sequence[Size]) -> Tensor:
    """A tensor of one element repeated to ``shape``."""
    return prims.broadcast_in_dim(prims.reshape(number, shape=()), shape=tuple(shape), dims=())


def flat(a: Tensor) -> Tensor:
    """The elements as a vector, in row-major order."""
    return prims.reshape(a, shape=(a.numel(),))


def slice_dim(a: Tensor, dim: int, start: Size, stop: Size, step: int = 1) -> Tensor:
    """``[start, stop)`` of one dim, every ``step``."""
    return prims.slice(a, dim=dim, start=start, stop=stop, step=step)


def pad_dim(a: Tensor, dim: int, low: Size, high: Size, value: Any = 0) -> Tensor:
    """``value`` before and after one dim; negative amounts cut off."""
    none = (0,) * a.ndim
    return prims.pad(a, low=resized(none, dim, low), high=resized(none, dim, high), value=value)


def add_at(target: Tensor, dim: int, index: Tensor, values: Tensor) -> Tensor:
    """``target`` with ``values`` added at positions of one dim."""
    return prims.index_put(target, values, index, dims=(dim,), accumulate=True)


def iota(
    length: Size, dtype: torch.dtype, device: torch.device, start: Size = 0, step: Size = 1
) -> Tensor:
    """``start, start + step, ...``."""
    return prims.iota(length=length, start=start, step=step, dtype=dtype, device=device)
