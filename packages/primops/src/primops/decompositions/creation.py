"""Tensors from numbers: constants, ranges, triangles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from primops import prims
from primops.meta import Size
from primops.operand import (
    Scalar,
    Tensor,
    along,
    can_hold,
    full,
    iota,
    over,
    round_to,
    spread,
    to_dtype,
)
from primops.promotion import HALF_DTYPES, compute_dtype, is_number, number_dtype
from primops.registry import DecompositionTable, Rule

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


def factory(
    table: DecompositionTable, *ops: str, like: bool = False, floating: bool = False
) -> Callable[[Rule], Rule]:
    """Decorator for the rule of an operator that makes a tensor: given ``dtype`` (None: not asked
    for) and ``device``.

    ``like``: both are by default those of the first argument. ``floating``: the dtype is torch's
    default one if not asked for, and others than of floats stay calls. Memory that is not dense, or
    pinned, is nothing for prims.
    """

    def add(body: Rule) -> Rule:
        @table.register(*ops)
        def rule(
            *args: Any, dtype: Dtype = None, layout: Any = None, device: Device = None,
            pin_memory: Any = None, memory_format: Any = None, **more: Any,
        ) -> Any:  # fmt: skip
            if layout not in (None, torch.strided) or pin_memory:
                return NotImplemented
            device = place(device, args[0].device if like else None)
            if like:
                dtype = dtype or args[0].dtype
            elif floating:
                dtype = dtype or torch.get_default_dtype()
                if not dtype.is_floating_point:
                    return NotImplemented
            return body(*args, dtype=dtype, device=device, **more)

        return rule

    return add


def _constant(name: str, number: int) -> tuple[Rule, Rule, Rule]:
    @factory(rules, name)
    def plain(size: Sequence[Size], *, dtype: Dtype, device: torch.device) -> Tensor:
        return full(size, number, dtype or torch.get_default_dtype(), device)

    @factory(rules, f"{name}_like", like=True)
    def like(self: Tensor, **options: Any) -> Tensor:
        return full(self.shape, number, **options)

    @factory(rules, f"new_{name}", like=True)
    def new(self: Tensor, size: Sequence[Size], **options: Any) -> Tensor:
        return full(size, number, **options)

    return plain, like, new


zeros, zeros_like, new_zeros = _constant("zeros", 0)
_constant("ones", 1)
rules.register("_efficientzerotensor")(zeros)
rules.register("zero")(zeros_like)


def unset(rule: Rule) -> Rule:
    """Memory without a value is made of zeros, the same bits in every run, unless torch is asked to
    fill it.
    """

    def unless_filled(*args: Any, **options: Any) -> Any:
        filled = (
            torch.are_deterministic_algorithms_enabled()
            and torch._C._get_deterministic_fill_uninitialized_memory()
        )
        return NotImplemented if filled else rule(*args, **options)

    return unless_filled


rules.register("empty.memory_format")(unset(zeros))
rules.register("empty_like")(unset(zeros_like))
rules.register("new_empty")(unset(new_zeros))
rules.register("empty_permuted")(unset(lambda size, order, **options: zeros(size, **options)))


def overlaps(size: Sequence[Size], stride: Sequence[Size]) -> bool:
    """Whether strides, all of them numbers, are not known to give each element its own memory."""
    span = 1
    pairs: Any = zip(stride, size)
    known = [pair for pair in pairs if all(isinstance(number, int) for number in pair)]
    for step, length in sorted(known):
        if length > 1 and step < span:
            return True
        span += (length - 1) * step if length > 1 else 0
    return False


@rules.register("empty_strided")
@unset
def empty_strided(size: Sequence[Size], stride: Sequence[Size], **options: Any) -> Tensor:
    """Zeros."""
    return NotImplemented if overlaps(size, stride) else zeros(size, **options)


@rules.register("new_empty_strided")
@unset
def new_empty_strided(
    self: Tensor, size: Sequence[Size], stride: Sequence[Size], **options: Any
) -> Tensor:
    """Zeros."""
    return NotImplemented if overlaps(size, stride) else new_full(self, size, 0, **options)


def _filled(
    size: Sequence[Size], fill_value: Scalar, *, dtype: Dtype, device: torch.device
) -> Tensor:
    dtype = dtype or number_dtype(fill_value)
    if isinstance(fill_value, complex) or not can_hold(dtype, fill_value):
        return NotImplemented
    return full(size, fill_value, dtype, device)


factory(rules, "full")(_filled)
new_full = factory(rules, "new_full", like=True)(
    lambda self, size, fill_value, **made: _filled(size, fill_value, **made)
)


@rules.register("full_like")
def full_like(self: Tensor, fill_value: Scalar, **options: Any) -> Tensor:
    """One number everywhere."""
    return new_full(self, self.shape, fill_value, **options)


@rules.register("fill.Scalar", "fill.Tensor")
def fill(self: Tensor, value: Any) -> Tensor:
    """One number everywhere."""
    if is_number(value):
        return new_full(self, self.shape, value)
    return over(to_dtype(value, self.dtype), self.shape)


@factory(rules, "scalar_tensor")
def scalar_tensor(s: Scalar, *, dtype: Dtype, device: torch.device) -> Tensor:
    """A number as a tensor without dims."""
    return full((), s, dtype or torch.get_default_dtype(), device)


# Ranges
# --------------------------------------------------------------------------------------------------


@factory(rules, "arange.start_step")
def arange(
    start: Scalar, end: Scalar, step: Scalar = 1, *, dtype: Dtype, device: torch.device
) -> Tensor:
    """start, start + step, ... below end."""
    numbers = (start, end, step)
    integers = all(isinstance(number, (int, torch.SymInt)) for number in numbers)
    dtype = dtype or (torch.int64 if integers else torch.get_default_dtype())
    if integers:
        # Rounded up; written without a comparison, so that sizes may be symbolic.
        length = (end - start + step - (1 if not isinstance(step, int) or step > 0 else -1)) // step  # type: ignore[operator]
        length = max(length, 0) if isinstance(length, int) else length
        made = torch.int64 if dtype in HALF_DTYPES else dtype
        return to_dtype(iota(length, made, device, start, step), dtype)  # type: ignore[arg-type]
    are_known = all(isinstance(number, (int, float)) for number in numbers)
    if not (dtype.is_floating_point and are_known):
        return NotImplemented
    length = max(0, math.ceil((end - start) / step))  # type: ignore[operator]
    position = iota(length, torch.float64, device)
    return to_dtype(prims.add(prims.mul(position, step), start), dtype)


rules.register("arange")(lambda end, **options: arange(0, end, 1, **options))
rules.register("arange.start")(lambda start, end, **options: arange(start, end, 1, **options))


def _steps(first: Scalar, last: Scalar, step: Tensor, dtype: torch.dtype) -> Tensor:
    """Equal steps, counted from the nearer end."""
    (count,) = step.shape
    position = iota(count, step.dtype, step.device)
    from_end = iota(count, step.dtype, step.device, count - 1, -1)
    ahead = prims.add(prims.mul(step, position), first)
    back = prims.sub(last, prims.mul(step, from_end))
    return round_to(prims.where(prims.lt(position, count // 2), ahead, back), dtype)


@factory(rules, "linspace", floating=True)
def linspace(
    start: Scalar, end: Scalar, steps: int, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Equal steps from start to end."""
    if steps < 2:
        return full((steps,), start, dtype, device)
    step = full((steps,), (end - start) / (steps - 1), compute_dtype(dtype), device)
    return _steps(start, end, step, dtype)


@factory(
    rules,
    "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor", floating=True,
)  # fmt: skip
def linspace_of_tensors(
    start: Any, end: Any, steps: int, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Equal steps between tensors without dims."""

    def spread(x: Any) -> Tensor:
        wide = compute_dtype(dtype)
        x = full((), x, wide, device) if isinstance(x, (int, float)) else to_dtype(x, wide)
        return over(x, (steps,))

    if steps < 2:
        return round_to(spread(start), dtype)
    first, last = spread(start), spread(end)
    return _steps(first, last, prims.div(prims.sub(last, first), steps - 1), dtype)


@rules.register(
    "logspace", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor"
)
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Dtype = None, **options: Any
) -> Tensor:
    """``base`` to the power of equal steps."""
    dtype = dtype or torch.get_default_dtype()
    line = linspace if is_number(start) and is_number(end) else linspace_of_tensors
    exponents = line(start, end, steps, dtype=compute_dtype(dtype), **options)
    return exponents if exponents is NotImplemented else round_to(prims.pow(base, exponents), dtype)


# Triangles
# --------------------------------------------------------------------------------------------------


def _offsets(rows: Size, columns: Size, device: torch.device) -> Tensor:
    """column - row for every position of a matrix."""
    shape = (rows, columns)
    row = along(iota(rows, torch.int64, device), shape, 0)
    return prims.sub(along(iota(columns, torch.int64, device), shape, 1), row)


@factory(rules, "eye.m")
def eye(n: Size, m: Size, *, dtype: Dtype, device: torch.device) -> Tensor:
    """1 on the main diagonal."""
    return to_dtype(prims.eq(_offsets(n, m, device), 0), dtype or torch.get_default_dtype())


rules.register("eye")(lambda n, **options: eye(n, n, **options))


def _triangle(self: Tensor, test: Callable[..., Tensor], diagonal: int) -> Tensor:
    rows, columns = self.ndim - 2, self.ndim - 1
    inside = test(_offsets(self.shape[rows], self.shape[columns], self.device), diagonal)
    return prims.where(spread(inside, self.shape, range(rows)), self, 0)


rules.register("tril")(lambda self, diagonal=0: _triangle(self, prims.le, diagonal))
rules.register("triu")(lambda self, diagonal=0: _triangle(self, prims.ge, diagonal))


@rules.register("diag_embed")
def diag_embed(self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Vectors as the main diagonals of matrices; other diagonals stay an ATen call."""
    rank = self.ndim + 1
    if offset or (dim1 % rank, dim2 % rank) != (rank - 2, rank - 1):
        return NotImplemented
    size = self.shape[-1]
    spread = prims.broadcast_in_dim(self, shape=(*self.shape, size), dims=tuple(range(self.ndim)))
    return _triangle(spread, prims.eq, 0)


def triangle_indices(
    row: int, col: int, offset: int, lower: bool, dtype: Dtype, device: torch.device
) -> Tensor:
    """Rows and columns of a triangle's elements: the row of element i is the number of rows that
    end at or before i.
    """
    at = iota(row, torch.int64, device, offset)
    first = (
        full((row,), 0, torch.int64, device) if lower else prims.minimum(prims.maximum(at, 0), col)
    )
    count = prims.sub(
        prims.maximum(prims.minimum(prims.add(at, 1), col), 0) if lower else col, first
    )
    sizes = [
        max(min(r + offset + 1, col), 0) if lower else col - min(max(r + offset, 0), col)
        for r in range(row)
    ]
    ends = prims.cumsum(count, dim=0)
    shape = (sum(sizes), row)
    i = iota(shape[0], torch.int64, device)
    past = prims.ge(along(i, shape, 0), along(ends, shape, 1))
    rows = prims.sum(to_dtype(past, torch.int64), dims=(1,))
    start = prims.sub(prims.sub(ends, count), first)
    columns = prims.sub(i, prims.index(start, rows, dims=(0,)))
    both = [prims.reshape(x, shape=(1, shape[0])) for x in (rows, columns)]
    return to_dtype(prims.cat(*both, dim=0), dtype or torch.int64)


def _register_triangle_indices(name: str, lower: bool) -> None:
    @factory(rules, name)
    def rule(row: int, col: int, offset: int = 0, *, dtype: Dtype, device: torch.device) -> Tensor:
        if row == 0 or col == 0:
            return NotImplemented
        return triangle_indices(row, col, offset, lower, dtype, device)


_register_triangle_indices("tril_indices", True)
_register_triangle_indices("triu_indices", False)


def _window(names: str, shape_of: Any) -> None:
    """A window of signal processing: ``shape_of(position, steps, *numbers)``; periodic ones leave
    out the last point.
    """

    @factory(rules, *names.split(), floating=True)
    def rule(window_length: int, *rest: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        periodic, numbers = (
            (rest[0], rest[1:]) if rest and isinstance(rest[0], bool) else (True, rest)
        )
        if window_length < 2:
            return full((window_length,), 1.0, dtype, device)
        steps = window_length if periodic else window_length - 1
        position = iota(window_length, compute_dtype(dtype), device)
        return round_to(shape_of(position, steps, *numbers), dtype)


def _cosine(position: Tensor, steps: int, times: int) -> Tensor:
    return prims.cos(prims.mul(position, 2 * math.pi * times / steps))


_window(
    "hann_window hann_window.periodic",
    lambda x, n: prims.sub(0.5, prims.mul(_cosine(x, n, 1), 0.5)),
)
_window(
    "hamming_window hamming_window.periodic hamming_window.periodic_alpha "
    "hamming_window.periodic_alpha_beta",
    lambda x, n, alpha=0.54, beta=0.46: prims.sub(alpha, prims.mul(_cosine(x, n, 1), beta)),
)
_window("blackman_window blackman_window.periodic", lambda x, n: prims.add(
    prims.sub(0.42, prims.mul(_cosine(x, n, 1), 0.5)), prims.mul(_cosine(x, n, 2),
    0.08)))  # fmt: skip
_window(
    "bartlett_window bartlett_window.periodic",
    lambda x, n: prims.sub(1, prims.abs(prims.sub(prims.mul(x, 2 / n), 1))),
)
