"""Calls a built pipeline on tensors: Halide buffers over their memory, without copies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import halide as hl
import numpy as np
import torch
from loopir import Kernel, format_expr

from .functions import OUT_OF_RANGE, ZERO_DIVISOR
from .plan import Plan

NUMPY = {
    torch.bool: np.uint8, torch.uint8: np.uint8, torch.int8: np.int8, torch.int16: np.int16,
    torch.int32: np.int32, torch.int64: np.int64, torch.float16: np.uint16,
    torch.bfloat16: np.uint16, torch.float32: np.float32, torch.float64: np.float64,
}  # fmt: skip
SPARE = np.zeros(64, np.uint8)  # memory for buffers without elements
Sizes = Sequence[int]


def launcher(plan: Plan, callable_: hl.Callable, outputs: Sequence[str]) -> Callable[..., None]:
    """A function of the buffers' tensors and an int per size."""
    kernel = plan.kernel
    names = [buffer.name for buffer in kernel.buffers]
    positions = {name: number for number, name in enumerate(names)}
    twins = {
        name: [positions[written] for read, written in sorted(plan.copied) if read == name]
        for name in plan.inputs
    }
    inputs = [(positions[name], twins[name], _flat(kernel, name)) for name in plan.inputs]
    stores = [(positions[name], _output(plan, name)) for name in outputs]
    points = _function(kernel, [item.extent for item in kernel.ranges])
    count = len(names)
    checked: set[tuple[int, ...]] = {()}

    def launch(*args: Any) -> None:
        tensors, sizes = args[:count], args[count:]
        if sizes not in checked:
            plan.check_magnitudes(sizes)
            checked.add(sizes)
        if 0 in points(*sizes):
            return
        given = []
        for at, written, make in inputs:
            tensor = tensors[at]
            shared = written and tensor.data_ptr() in [tensors[n].data_ptr() for n in written]
            given.append(make(tensor, sizes, bool(shared)))
        results = [make(tensors[at], sizes) for at, make in stores]
        try:
            callable_(*given, *sizes, *results)
        except hl.HalideError as error:
            raise _translated(kernel, error) from error

    return launch


class TooFewPoints(RuntimeError):
    """A schedule computes more points than the loops have; nothing has been written."""


def _translated(kernel: Kernel, error: Exception) -> Exception:
    message = str(error).rstrip()
    if " is accessed at " in message:
        return TooFewPoints(f"{kernel.name}: {message}")
    if message.endswith(str(OUT_OF_RANGE)):
        return IndexError(f"{kernel.name}: index out of range")
    if message.endswith(str(ZERO_DIVISOR)):
        return RuntimeError("ZeroDivisionError")
    return RuntimeError(f"{kernel.name}: {message}")


def _function(kernel: Kernel, exprs: Sequence) -> Callable[..., tuple[int, ...]]:
    """Expressions of the sizes as a Python function."""
    values = "".join(f"{format_expr(expr)}, " for expr in exprs)
    return eval(f"lambda {', '.join(map(str, kernel.sizes))}: ({values})")


def _flat(kernel: Kernel, name: str) -> Callable[..., hl.Buffer]:
    (buffer,) = (b for b in kernel.buffers if b.name == name)
    numel = _function(kernel, [buffer.numel])
    dtype = np.dtype(NUMPY[buffer.dtype])

    def make(tensor: torch.Tensor, sizes: Sizes, copy: bool = False) -> hl.Buffer:
        (count,) = numel(*sizes)
        memory = _memory(tensor, count, dtype)
        return hl.Buffer(memory.copy() if copy else memory)

    return make


def _memory(tensor: torch.Tensor, count: int, dtype: np.dtype) -> np.ndarray:
    if count <= 0:
        return SPARE[: dtype.itemsize].view(dtype)[:1]
    span = (ctypes.c_char * (count * dtype.itemsize)).from_address(tensor.data_ptr())
    return np.frombuffer(memoryview(span), dtype)


def _output(plan: Plan, name: str) -> Callable[..., hl.Buffer]:
    view, kernel = plan.views.get(name), plan.kernel
    if view is None:
        return _flat(kernel, name)
    (buffer,) = (b for b in kernel.buffers if b.name == name)
    dtype, dims = np.dtype(NUMPY[buffer.dtype]), len(view.extents)
    layout = _function(kernel, [*view.extents, *view.strides, view.offset, buffer.numel])
    width = dtype.itemsize
    # NumPy forgets the strides of dimensions of one element, but for the last one's
    unit = max(view.unit, 0)
    order = [*(n for n in reversed(range(dims)) if n != unit), *([unit] if dims else [])]
    back = order[::-1] if unit else None

    def make(tensor: torch.Tensor, sizes: Sizes) -> hl.Buffer:
        numbers = layout(*sizes)
        extents, strides = numbers[:dims], numbers[dims : 2 * dims]
        offset, count = numbers[2 * dims :]
        if 0 in extents:
            offset, count = 0, 0
        memory = SPARE if count <= 0 else _memory(tensor, count, dtype)
        shape = [extents[n] for n in order]
        steps = [strides[n] * width for n in order]
        found = hl.Buffer(np.ndarray(shape, dtype, memory.data, offset * width, steps))
        return found if back is None else found.transposed(back)

    return make
