"""Tensors from numbers: constants, ranges, triangles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from primops import prims
from primops.meta import Size
from primops.operand import Scalar, Tensor, full, iota, round_to, to_dtype
from primops.promotion import HALF_DTYPES, compute_dtype, is_number, number_dtype
from primops.registry import DecompositionTable

rules = DecompositionTable()
Dtype = torch.dtype | None
Device = torch.device | str | None


def place(device: Device, default: torch.device | None = None) -> torch.device:
    """The device asked for, with its index for accelerators."""
    if device is None:
        return default or torch.get_default_device()
    device = torch.device(device)
    if device.type not in ("cpu", "meta") and device.index is None:
        return torch.device(device.type, torch.accelerator.current_device_index())
    return device


def is_strided(layout: Any, pin_memory: Any) -> bool:
    """Whether a prim can make this: dense memory that is not pinned."""
    return layout in (None, torch.strided) and not pin_memory


def _constant(name: str, number: int) -> None:
    @rules.register(name)
    def plain(size: Sequence[Size], *, dtype: Dtype = None, layout: Any = None, device: Device = None,
              pin_memory: Any = None, memory_format: Any = None) -> Tensor:  # fmt: skip
        if not is_strided(layout, pin_memory):
            return NotImplemented
        return full(size, number, dtype or torch.get_default_dtype(), place(device))

    @rules.register(f"{name}_like")
    def like(self: Tensor, *, dtype: Dtype = None, layout: Any = None, device: Device = None, pin_memory: Any = None,
             memory_format: Any = None) -> Tensor:  # fmt: skip
        if not is_strided(layout, pin_memory):
            return NotImplemented
        return full(self.shape, number, dtype or self.dtype, place(device, self.device))

    @rules.register(f"new_{name.partition('.')[0]}")
    def new(self: Tensor, size: Sequence[Size], *, dtype: Dtype = None, layout: Any = None, device: Device = None,
            pin_memory: Any = None) -> Tensor:  # fmt: skip
        if not is_strided(layout, pin_memory):
            return NotImplemented
        return full(size, number, dtype or self.dtype, place(device, self.device))


_constant("zeros", 0)
_constant("ones", 1)


# Memory without a value is made of zeros: the same bits in every run.


@rules.register("empty.memory_format")
def empty(
    size: Sequence[Size], *, dtype: Dtype = None, layout: Any = None, device: Device = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Zeros."""
    return (
        full(size, 0, dtype or torch.get_default_dtype(), place(device)) if is_strided(layout, pin_memory) else NotImplemented
    )


@rules.register("empty_like")
def empty_like(
    self: Tensor, *, dtype: Dtype = None, layout: Any = None, device: Device = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Zeros."""
    return new_full(self, self.shape, 0, dtype=dtype, layout=layout, device=device, pin_memory=pin_memory)


def overlaps(size: Sequence[Size], stride: Sequence[Size]) -> bool:
    """Whether strides, all of them numbers, are not known to give each element its own memory."""
    known = [(step, length) for step, length in zip(stride, size) if isinstance(step, int) and isinstance(length, int)]
    span = 1
    for step, length in sorted(pair for pair in known if pair[1] > 1):
        if step < span:
            return True
        span = span + (length - 1) * step
    return False


@rules.register("empty_strided")
def empty_strided(
    size: Sequence[Size], stride: Sequence[Size], *, dtype: Dtype = None, layout: Any = None, device: Device = None,
    pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    """Zeros."""
    if overlaps(size, stride):
        return NotImplemented
    return empty(size, dtype=dtype, layout=layout, device=device, pin_memory=pin_memory)


@rules.register("new_empty")
def new_empty(
    self: Tensor, size: Sequence[Size], *, dtype: Dtype = None, layout: Any = None, device: Device = None,
    pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    """Zeros."""
    return new_full(self, size, 0, dtype=dtype, layout=layout, device=device, pin_memory=pin_memory)


@rules.register("new_empty_strided")
def new_empty_strided(
    self: Tensor, size: Sequence[Size], stride: Sequence[Size], *, dtype: Dtype = None, layout: Any = None,
    device: Device = None, pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    """Zeros."""
    if overlaps(size, stride):
        return NotImplemented
    return new_full(self, size, 0, dtype=dtype, layout=layout, device=device, pin_memory=pin_memory)


@rules.register("full")
def full_rule(
    size: Sequence[Size], fill_value: Scalar, *, dtype: Dtype = None, layout: Any = None, device: Device = None,
    pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    """One number everywhere."""
    if not is_strided(layout, pin_memory) or isinstance(fill_value, complex):
        return NotImplemented
    return full(size, fill_value, dtype or number_dtype(fill_value), place(device))


@rules.register("full_like")
def full_like(
    self: Tensor, fill_value: Scalar, *, dtype: Dtype = None, layout: Any = None, device: Device = None,
    pin_memory: Any = None, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """One number everywhere."""
    return new_full(self, self.shape, fill_value, dtype=dtype, layout=layout, device=device, pin_memory=pin_memory)


@rules.register("new_full")
def new_full(
    self: Tensor, size: Sequence[Size], fill_value: Scalar, *, dtype: Dtype = None, layout: Any = None,
    device: Device = None, pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    """One number everywhere."""
    if not is_strided(layout, pin_memory) or isinstance(fill_value, complex):
        return NotImplemented
    return full(size, fill_value, dtype or self.dtype, place(device, self.device))


@rules.register("fill.Scalar", "fill.Tensor")
def fill(self: Tensor, value: Any) -> Tensor:
    """One number everywhere."""
    if isinstance(value, (int, float, torch.SymInt)):
        return full(self.shape, value, self.dtype, self.device)
    return prims.broadcast_in_dim(to_dtype(value, self.dtype), shape=tuple(self.shape), dims=())


@rules.register("zero")
def zero(self: Tensor) -> Tensor:
    """Zeros."""
    return full(self.shape, 0, self.dtype, self.device)


@rules.register("scalar_tensor")
def scalar_tensor(
    s: Scalar, *, dtype: Dtype = None, layout: Any = None, device: Device = None, pin_memory: Any = None
) -> Tensor:
    """A number as a tensor without dims."""
    return full((), s, dtype or torch.get_default_dtype(), place(device)) if is_strided(layout, pin_memory) else NotImplemented


# Ranges ----------------------------------------------------------------------------------------------------------------------


@rules.register("arange")
def arange_end(end: Scalar, **options: Any) -> Tensor:
    """0, 1, ... below end."""
    return arange(0, end, 1, **options)


@rules.register("arange.start")
def arange_start(start: Scalar, end: Scalar, **options: Any) -> Tensor:
    """start, start + 1, ... below end."""
    return arange(start, end, 1, **options)


@rules.register("arange.start_step")
def arange(
    start: Scalar, end: Scalar, step: Scalar = 1, *, dtype: Dtype = None, layout: Any = None, device: Device = None,
    pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    """start, start + step, ... below end."""
    numbers = (start, end, step)
    integers = all(isinstance(number, (int, torch.SymInt)) for number in numbers)
    if not is_strided(layout, pin_memory):
        return NotImplemented
    dtype = dtype or (torch.int64 if integers else torch.get_default_dtype())
    if integers:
        # Rounded up; written without a comparison, so that sizes may be symbolic.
        length = (end - start + step - (1 if not isinstance(step, int) or step > 0 else -1)) // step  # type: ignore[operator]
        length = max(length, 0) if isinstance(length, int) else length
        made = torch.int64 if dtype in HALF_DTYPES else dtype
        return to_dtype(iota(length, made, place(device), start, step), dtype)  # type: ignore[arg-type]
    if not dtype.is_floating_point or not all(isinstance(number, (int, float)) for number in numbers):
        return NotImplemented
    length = max(0, math.ceil((end - start) / step))  # type: ignore[operator]
    position = iota(length, torch.float64, place(device))
    return to_dtype(prims.add(prims.mul(position, step), start), dtype)


@rules.register("linspace")
def linspace(
    start: Scalar, end: Scalar, steps: int, *, dtype: Dtype = None, layout: Any = None, device: Device = None,
    pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    """Equal steps from start to end, counted from the nearer one."""
    dtype = dtype or torch.get_default_dtype()
    if not is_strided(layout, pin_memory) or not dtype.is_floating_point:
        return NotImplemented
    if steps < 2:
        return full((steps,), start, dtype, place(device))
    wide = compute_dtype(dtype)
    step = full((steps,), (end - start) / (steps - 1), wide, place(device))  # type: ignore[operator]
    position = iota(steps, wide, place(device))
    from_end = iota(steps, wide, place(device), steps - 1, -1)
    ahead = prims.add(prims.mul(step, position), start)
    back = prims.sub(end, prims.mul(step, from_end))
    return round_to(prims.where(prims.lt(position, steps // 2), ahead, back), dtype)


# Triangles -------------------------------------------------------------------------------------------------------------------


def _offsets(rows: Size, columns: Size, device: torch.device) -> Tensor:
    """column - row for every position of a matrix."""
    shape = (rows, columns)
    row = prims.broadcast_in_dim(iota(rows, torch.int64, device), shape=shape, dims=(0,))
    return prims.sub(prims.broadcast_in_dim(iota(columns, torch.int64, device), shape=shape, dims=(1,)), row)


@rules.register("eye")
def eye(n: Size, **options: Any) -> Tensor:
    """The identity matrix."""
    return eye_m(n, n, **options)


@rules.register("eye.m")
def eye_m(
    n: Size, m: Size, *, dtype: Dtype = None, layout: Any = None, device: Device = None, pin_memory: Any = None
) -> Tensor:
    """1 on the main diagonal."""
    if not is_strided(layout, pin_memory):
        return NotImplemented
    return to_dtype(prims.eq(_offsets(n, m, place(device)), 0), dtype or torch.get_default_dtype())


def _triangle(self: Tensor, inside: Tensor) -> Tensor:
    rank = self.ndim
    mask = prims.broadcast_in_dim(inside, shape=tuple(self.shape), dims=(rank - 2, rank - 1))
    return prims.where(mask, self, 0)


@rules.register("tril")
def tril(self: Tensor, diagonal: int = 0) -> Tensor:
    """On and below a diagonal; 0 elsewhere."""
    return _triangle(self, prims.le(_offsets(self.shape[-2], self.shape[-1], self.device), diagonal))


@rules.register("triu")
def triu(self: Tensor, diagonal: int = 0) -> Tensor:
    """On and above a diagonal; 0 elsewhere."""
    return _triangle(self, prims.ge(_offsets(self.shape[-2], self.shape[-1], self.device), diagonal))


@rules.register("diag_embed")
def diag_embed(self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Vectors as the main diagonals of matrices; other diagonals stay an ATen call."""
    rank = self.ndim + 1
    if offset or (dim1 % rank, dim2 % rank) != (rank - 2, rank - 1):
        return NotImplemented
    size = self.shape[-1]
    spread = prims.broadcast_in_dim(self, shape=(*self.shape, size), dims=tuple(range(self.ndim)))
    return _triangle(spread, prims.eq(_offsets(size, size, self.device), 0))


@rules.register("empty_permuted")
def empty_permuted(size: Sequence[Size], physical_layout: Sequence[int], **options: Any) -> Tensor:
    """Zeros."""
    return empty(size, **options)


@rules.register("linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor")
def linspace_of_tensors(
    start: Any, end: Any, steps: int, *, dtype: Dtype = None, layout: Any = None, device: Device = None, pin_memory: Any = None
) -> Tensor:
    """Equal steps between tensors without dims."""
    dtype = dtype or torch.get_default_dtype()
    if not is_strided(layout, pin_memory) or not dtype.is_floating_point:
        return NotImplemented
    wide, at = compute_dtype(dtype), place(device)

    def spread(x: Any, count: int) -> Tensor:
        x = full((), x, wide, at) if isinstance(x, (int, float)) else to_dtype(x, wide)
        return prims.broadcast_in_dim(x, shape=(count,), dims=())

    if steps < 2:
        return round_to(spread(start, steps), dtype)
    first, last = spread(start, steps), spread(end, steps)
    step = prims.div(prims.sub(last, first), steps - 1)
    position, from_end = iota(steps, wide, at), iota(steps, wide, at, steps - 1, -1)
    ahead = prims.add(prims.mul(step, position), first)
    back = prims.sub(last, prims.mul(step, from_end))
    return round_to(prims.where(prims.lt(position, steps // 2), ahead, back), dtype)


@rules.register("_efficientzerotensor")
def efficient_zeros(size: Sequence[Size], **options: Any) -> Tensor:
    """Zeros."""
    return empty(size, **options)


@rules.register("logspace", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor")
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Dtype = None, **options: Any) -> Tensor:
    """``base`` to the power of equal steps."""
    dtype = dtype or torch.get_default_dtype()
    line = linspace if is_number(start) and is_number(end) else linspace_of_tensors
    exponents = line(start, end, steps, dtype=compute_dtype(dtype), **options)
    return exponents if exponents is NotImplemented else round_to(prims.pow(base, exponents), dtype)


def triangle_indices(row: int, col: int, offset: int, lower: bool, dtype: Dtype, device: torch.device) -> Tensor:
    """Rows and columns of a triangle's elements: the row of element i is the number of rows that end at or before i."""
    at = iota(row, torch.int64, device, offset)
    first = full((row,), 0, torch.int64, device) if lower else prims.minimum(prims.maximum(at, 0), col)
    count = prims.sub(prims.maximum(prims.minimum(prims.add(at, 1), col), 0) if lower else col, first)
    sizes = [max(min(r + offset + 1, col), 0) if lower else col - min(max(r + offset, 0), col) for r in range(row)]
    ends = prims.cumsum(count, dim=0)
    shape = (sum(sizes), row)
    i = iota(shape[0], torch.int64, device)
    past = prims.ge(prims.broadcast_in_dim(i, shape=shape, dims=(0,)), prims.broadcast_in_dim(ends, shape=shape, dims=(1,)))
    rows = prims.sum(to_dtype(past, torch.int64), dims=(1,))
    start = prims.sub(prims.sub(ends, count), first)
    columns = prims.sub(i, prims.index(start, rows, dims=(0,)))
    both = [prims.reshape(x, shape=(1, shape[0])) for x in (rows, columns)]
    return to_dtype(prims.cat(*both, dim=0), dtype or torch.int64)


def _register_triangle_indices(name: str, lower: bool) -> None:
    @rules.register(name)
    def rule(row: int, col: int, offset: int = 0, *, dtype: Dtype = torch.int64, layout: Any = None, device: Device = None,
             pin_memory: Any = None) -> Tensor:  # fmt: skip
        if not is_strided(layout, pin_memory) or row == 0 or col == 0:
            return NotImplemented
        return triangle_indices(row, col, offset, lower, dtype, place(device))


_register_triangle_indices("tril_indices", True)
_register_triangle_indices("triu_indices", False)


def _window(name: str, shape_of: Any) -> None:
    """A window of signal processing: ``shape_of(position, steps, *numbers)``; periodic ones leave out the last point."""

    def rule(window_length: int, *rest: Any, dtype: Dtype = None, layout: Any = None, device: Device = None,
             pin_memory: Any = None) -> Tensor:  # fmt: skip
        dtype = dtype or torch.get_default_dtype()
        if not is_strided(layout, pin_memory) or not dtype.is_floating_point:
            return NotImplemented
        periodic, numbers = (rest[0], rest[1:]) if rest and isinstance(rest[0], bool) else (True, rest)
        if window_length < 2:
            return full((window_length,), 1.0, dtype, place(device))
        steps = window_length if periodic else window_length - 1
        position = iota(window_length, compute_dtype(dtype), place(device))
        return round_to(shape_of(position, steps, *numbers), dtype)

    suffixes = ("", ".periodic", ".periodic_alpha", ".periodic_alpha_beta") if name == "hamming" else ("", ".periodic")
    rules.register(*(f"{name}_window{suffix}" for suffix in suffixes))(rule)


def _cosine(position: Tensor, steps: int, times: int) -> Tensor:
    return prims.cos(prims.mul(position, 2 * math.pi * times / steps))


_window("hann", lambda x, n: prims.sub(0.5, prims.mul(_cosine(x, n, 1), 0.5)))
_window("hamming", lambda x, n, alpha=0.54, beta=0.46: prims.sub(alpha, prims.mul(_cosine(x, n, 1), beta)))
_window("blackman", lambda x, n: prims.add(
    prims.sub(0.42, prims.mul(_cosine(x, n, 1), 0.5)), prims.mul(_cosine(x, n, 2), 0.08)))  # fmt: skip
_window("bartlett", lambda x, n: prims.sub(1, prims.abs(prims.sub(prims.mul(x, 2 / n), 1))))
