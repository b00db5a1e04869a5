"""Hypothesis strategies for kernels (extra ``loopir[testing]``).

``kernels()`` draws valid kernels: elementwise programs, reductions with several bodies, broadcasts,
masks, symbolic sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import sympy
import torch
from hypothesis import strategies as st

from loopir.ir.body import Recorder
from loopir.ir.expr import symbol
from loopir.ir.kernel import Body, Kernel, KernelBuffer, Range, Value
from loopir.ir.simplify import product

FLOAT_UNARY = ("neg", "abs", "exp", "tanh", "sin", "floor", "erf", "trunc")
FLOAT_BINARY = ("add", "sub", "mul", "maximum", "minimum")
INTEGER_BINARY = ("add", "sub", "mul", "maximum", "minimum", "and", "or", "xor")
HALVES = (torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
LOADED = (torch.float32, torch.float64, *HALVES, *INTEGERS, torch.bool)
SIZE = symbol("s0")


@dataclass
class _Draft:
    """A kernel under construction: loops, buffers declared so far, and values by dtype that are
    visible.
    """

    draw: st.DrawFn
    ranges: list[Range]
    reduction: list[Range]
    buffers: list[KernelBuffer] = field(default_factory=list)
    recorder: Recorder = field(default_factory=Recorder)
    outer: list[Value] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)

    def position(self, loops: list[Range]) -> tuple[sympy.Expr, sympy.Expr]:
        """A row-major index over ``loops`` and the number of elements."""
        index, step = sympy.Integer(0), sympy.Integer(1)
        for item in reversed(loops):
            index += item.symbol * step
            step = product((step, item.extent))
        return index, step

    def load(self, loops: list[Range]) -> Value:
        """A load from a new buffer that varies with some of the loops."""
        kept = [item for item in loops if self.draw(st.booleans())] or loops
        index, numel = self.position(kept)
        dtype = self.draw(st.sampled_from(LOADED))
        name = f"in{sum(buffer.role == 'in' for buffer in self.buffers)}"
        self.buffers.append(KernelBuffer(name, dtype, "in", numel))
        value = self.recorder.load(name, index, dtype)
        return self.recorder.cast(value, torch.float32) if dtype in HALVES else value

    def operation(self, values: list[Value]) -> Value:
        """One elementwise operation on visible values."""
        ops, draw = self.recorder, self.draw
        a = draw(st.sampled_from(values))
        dtype = ops.dtypes[a.name]
        if dtype is torch.bool:
            return ops.where(a, ops.constant(1.5, torch.float32), ops.constant(-0.5, torch.float32))
        if not dtype.is_floating_point:
            b = draw(st.sampled_from([v for v in values if ops.dtypes[v.name] == dtype]))
            return draw(
                st.sampled_from(
                    [
                        ops.cast(a, torch.float32),
                        ops.elementwise(draw(st.sampled_from(INTEGER_BINARY)), a, b),
                    ]
                )
            )
        if draw(st.booleans()):
            return ops.elementwise(draw(st.sampled_from(FLOAT_UNARY)), a)
        b = draw(st.sampled_from([v for v in values if ops.dtypes[v.name] == dtype]))
        if draw(st.integers(0, 4)) == 0:
            return ops.lt(a, b)
        return ops.elementwise(draw(st.sampled_from(FLOAT_BINARY)), a, b)

    def store(self, value: Value, loops: list[Range]) -> None:
        """A store to a new buffer over all loops."""
        index, numel = self.position(loops)
        name = f"out{sum(buffer.role == 'out' for buffer in self.buffers)}"
        self.buffers.append(KernelBuffer(name, self.recorder.dtypes[value.name], "out", numel))
        self.recorder.store(name, index, value)

    def add(self, value: Value) -> None:
        """An addition to a place that only the reduction decides."""
        index, numel = self.position(self.reduction)
        name = f"inout{sum(buffer.role == 'inout' for buffer in self.buffers)}"
        self.buffers.append(KernelBuffer(name, torch.float32, "inout", numel))
        self.recorder.store(name, index, value, "add")

    def body(self, inner: bool) -> None:
        """A body that loads, computes, and reduces or stores."""
        loops = [*self.ranges, *self.reduction] if inner else self.ranges
        known = dict(self.recorder._known)
        start = len(self.recorder.instructions)
        values = [*self.outer, *(self.load(loops) for _ in range(self.draw(st.integers(1, 2))))]
        for _ in range(self.draw(st.integers(0, 5))):
            values.append(self.operation(values))
        if inner:
            self._finish_inner(values, loops)
            self.recorder._known = known
        else:
            self.outer = values
            self.store(values[-1], loops)
        self.bodies.append(Body(inner, tuple(self.recorder.instructions[start:])))

    def _finish_inner(self, values: list[Value], loops: list[Range]) -> None:
        if self.draw(st.booleans()):
            self.store(values[-1], loops)
        last = values[-1]
        dtype = self.recorder.dtypes[last.name]
        if dtype is torch.float32 and self.draw(st.integers(0, 3)) == 0:
            self.add(last)
        kinds = ("any", "all") if dtype is torch.bool else ("sum", "max", "min")
        self.outer = [
            *self.outer,
            self.recorder.reduce(self.draw(st.sampled_from(kinds)), last, dtype),
        ]


@st.composite
def kernels(draw: st.DrawFn, device: str = "cpu", max_extent: int = 9) -> Kernel:
    """A valid kernel with extents up to ``max_extent``, one of which may be the size ``s0`` (hint
    5).
    """
    extents = st.one_of(st.integers(1, max_extent).map(sympy.Integer), st.just(SIZE))
    ranges = [Range(symbol(f"x{i}"), draw(extents)) for i in range(draw(st.integers(0, 2)))]
    reduction = [Range(symbol(f"r{i}"), draw(extents)) for i in range(draw(st.integers(0, 2)))]
    draft = _Draft(draw, ranges, reduction)
    if reduction:
        for _ in range(draw(st.integers(1, 3))):
            draft.body(inner=True)
    draft.body(inner=False)
    exprs = [item.extent for item in (*ranges, *reduction)] + [
        buffer.numel for buffer in draft.buffers
    ]
    sizes = (SIZE,) if any(SIZE in expr.free_symbols for expr in exprs) else ()
    axes = [item.symbol for item in (*ranges, *reduction)]
    axis = draw(st.sampled_from([None, *axes[-1:]]))
    hints = tuple((size, 5) for size in sizes)
    return Kernel(
        "drawn",
        device,
        tuple(draft.buffers),
        sizes,
        tuple(ranges),
        tuple(reduction),
        tuple(draft.bodies),
        axis,
        hints,
    )
