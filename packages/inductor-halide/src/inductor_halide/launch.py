"""Calls a built pipeline on tensors: Halide buffers over their memory, without copies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import halide as hl
import numpy as np
import sympy
import torch
from loopir import Kernel, KernelBuffer, format_expr

from .functions import OUT_OF_RANGE, ZERO_DIVISOR
from .plan import Plan, View

SPARE = np.zeros(64, np.uint8)  # memory for buffers without elements


def launcher(plan: Plan, callable_: hl.Callable, outputs: Sequence[str]) -> Callable[..., None]:
    """A function of the buffers' tensors and an int per size."""
    kernel, names = plan.kernel, [buffer.name for buffer in plan.kernel.buffers]
    inputs = {b.name: _buffer(kernel, b, None) for b in kernel.buffers if b.name in plan.inputs}
    stores = {b.name: _buffer(kernel, b, plan.views.get(b.name)) for b in kernel.buffers}
    points = _function(kernel, [item.extent for item in kernel.ranges])
    check = cache(plan.check_magnitudes)

    def launch(*args: Any) -> None:
        tensors, sizes = dict(zip(names, args, strict=False)), args[len(names) :]
        check(sizes)
        if 0 in points(*sizes):
            return
        start = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        copied = {read for read, stored in plan.copied if start[read] == start[stored]}
        given = [make(tensors[name], sizes, name in copied) for name, make in inputs.items()]
        results = [stores[name](tensors[name], sizes, False) for name in outputs]
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


def _buffer(kernel: Kernel, buffer: KernelBuffer, view: View | None) -> Callable[..., hl.Buffer]:
    """A function of a tensor, the sizes and whether to copy; without a view, of all elements."""
    one = sympy.Integer(1)
    view = view or View((sympy.Max(buffer.numel, one),), (one,), sympy.Integer(0))
    dims = len(view.extents)
    name = str(buffer.dtype).removeprefix("torch.")
    dtype = np.dtype({"bool": "u1", "float16": "u2", "bfloat16": "u2"}.get(name, name))
    layout = _function(kernel, [*view.extents, *view.strides, view.offset, buffer.numel])
    width = dtype.itemsize
    # NumPy forgets the strides of dimensions of one element, but for the last one's
    unit = max(view.unit, 0)
    order = [*(n for n in reversed(range(dims)) if n != unit), *range(unit, min(dims, unit + 1))]

    def make(tensor: torch.Tensor, sizes: Sequence[int], copy: bool) -> hl.Buffer:
        numbers = layout(*sizes)
        offset, count = numbers[2 * dims :]
        empty = count <= 0 or 0 in numbers[:dims]
        memory: Any = SPARE.data
        if not empty:
            memory = (ctypes.c_char * (count * width)).from_address(tensor.data_ptr())
        shape = [numbers[n] for n in order]
        strides = [numbers[dims + n] * width for n in order]
        array = np.ndarray(shape, dtype, memory, 0 if empty else offset * width, strides)
        found = hl.Buffer(array.copy() if copy else array)
        return found.transposed(order[::-1]) if unit else found

    return make
