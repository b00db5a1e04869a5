"""Calls a built pipeline on tensors: Halide buffers over their memory, without copies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import halide as hl
import numpy as np
import sympy
import torch
from loopir import Kernel, format_expr

from .functions import OUT_OF_RANGE, ZERO_DIVISOR
from .plan import Plan, View

SPARE = np.zeros(64, np.uint8)  # memory for buffers without elements


def launcher(plan: Plan, callable_: hl.Callable, outputs: Sequence[str]) -> Callable[..., None]:
    """A function of the buffers' tensors and an int per size."""
    kernel = plan.kernel
    positions = {buffer.name: number for number, buffer in enumerate(kernel.buffers)}
    numels = {buffer.name: buffer.numel for buffer in kernel.buffers}
    one, zero = sympy.Integer(1), sympy.Integer(0)
    whole = {name: View((sympy.Max(numels[name], one),), (one,), zero) for name in numels}
    inputs = [
        (
            positions[name],
            [positions[stored] for read, stored in plan.copied if read == name],
            _buffer(kernel, positions[name], whole[name]),
        )
        for name in plan.inputs
    ]
    stores = [
        (positions[name], _buffer(kernel, positions[name], plan.views.get(name, whole[name])))
        for name in outputs
    ]
    points = _function(kernel, [item.extent for item in kernel.ranges])
    count = len(kernel.buffers)
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


def _buffer(kernel: Kernel, position: int, view: View) -> Callable[..., hl.Buffer]:
    """A function of a tensor, the sizes and whether to copy."""
    buffer, dims = kernel.buffers[position], len(view.extents)
    name = str(buffer.dtype).removeprefix("torch.")
    dtype = np.dtype({"bool": "u1", "float16": "u2", "bfloat16": "u2"}.get(name, name))
    layout = _function(kernel, [*view.extents, *view.strides, view.offset, buffer.numel])
    width = dtype.itemsize
    # NumPy forgets the strides of dimensions of one element, but for the last one's
    unit = max(view.unit, 0)
    order = [*(n for n in reversed(range(dims)) if n != unit), *range(unit, min(dims, unit + 1))]

    def make(tensor: torch.Tensor, sizes: Sequence[int], copy: bool = False) -> hl.Buffer:
        numbers = layout(*sizes)
        offset, count = numbers[2 * dims :]
        memory: Any = SPARE.data
        if count > 0 and 0 not in numbers[:dims]:
            memory = (ctypes.c_char * (count * width)).from_address(tensor.data_ptr())
        else:
            offset = 0
        shape = [numbers[n] for n in order]
        strides = [numbers[dims + n] * width for n in order]
        array = np.ndarray(shape, dtype, memory, offset * width, strides)
        found = hl.Buffer(array.copy() if copy else array)
        return found.transposed(order[::-1]) if unit else found

    return make
