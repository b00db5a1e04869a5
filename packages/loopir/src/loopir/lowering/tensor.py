"""Tensors during lowering: stored in memory (:class:`Strided`), or a function of the index that
isn't computed yet (:class:`Lazy`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sympy
import torch

from loopir.ir.body import OpsHandler, Recorder
from loopir.ir.kernel import Number, Value
from loopir.ir.node import Origin, Shape, View

Index: TypeAlias = tuple[sympy.Expr, ...]
InnerFunction: TypeAlias = Callable[[Any, Index], Any]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of computing one element: the number of buffers read, the number of operations
    (costly ones count four), the nesting depth of functions, and how often the reshapes between the
    memory and the result repeat an index.
    """

    reads: int = 0
    weight: int = 0
    depth: int = 0
    copies: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Strided:
    """A view of a buffer."""

    buffer: str
    dtype: torch.dtype
    device: torch.device
    shape: Shape
    stride: Shape
    offset: sympy.Expr

    @property
    def view(self) -> View:
        """The view as an argument of an extern call."""
        return View(self.buffer, self.shape, self.stride, self.offset)

    @property
    def cost(self) -> Cost:
        """One read; none for a tensor that is expanded along some dim, since it is much smaller
        than the result.
        """
        dims = zip(self.shape, self.stride, strict=True)
        return Cost(reads=int(all(size == 1 or step != 0 for size, step in dims)))

    @property
    def layout(self) -> Shape:
        """The strides, which users of the tensor prefer for their own result."""
        return self.stride

    def position(self, index: Index) -> sympy.Expr:
        """The offset of the element at ``index`` from the buffer's first element."""
        return sympy.Add(self.offset, *(i * s for i, s in zip(index, self.stride, strict=True)))

    def load(self, ops: OpsHandler, index: Index) -> Any:
        """The element at ``index``."""
        if self.is_empty:
            return ops.constant(0, self.dtype)
        return ops.load(self.buffer, self.position(index), self.dtype)

    @property
    def is_empty(self) -> bool:
        """Whether the tensor has no elements. Loads from it never run, but may be recorded before a
        loop of extent 0.
        """
        return any(size == 0 for size in self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Lazy:
    """A tensor of which ``function(ops, index)`` computes an element. ``layout`` has the strides
    that its buffer should have (None: contiguous). ``narrow`` is the 16-bit tensor in memory from
    which this one was converted, if any.
    """

    shape: Shape
    dtype: torch.dtype
    device: torch.device
    function: InnerFunction
    cost: Cost
    layout: Shape | None = None
    origin: Origin | None = None
    narrow: Strided | None = None

    def load(self, ops: OpsHandler, index: Index) -> Any:
        """The element at ``index``, computed once per recording."""
        memo = ops.memo if isinstance(ops, TracingOps) else {}
        key = (id(self), index)
        if self.origin is not None and isinstance(ops, TracingOps):
            ops.origins[self.origin] = None
        if key not in memo:
            memo[key] = self.function(ops, index)
        return memo[key]


Tensor: TypeAlias = Strided | Lazy


@dataclass(slots=True, eq=False)
class TracingOps(OpsHandler[Value]):
    """The ops handler passed to inner functions: forwards to a recorder and adds an optional mask
    to all loads. ``origins`` are the graph nodes whose values were loaded; ``device`` is where the
    loop runs.
    """

    recorder: Recorder
    device: torch.device
    mask: Value | None = None
    memo: dict = field(default_factory=dict)
    origins: dict[Origin, None] = field(default_factory=dict)

    def masked(self, mask: Value) -> TracingOps:
        """The same recorder with ``mask`` added to all loads."""
        both = mask if self.mask is None else self.recorder.elementwise("and", self.mask, mask)
        return TracingOps(self.recorder, self.device, both, origins=self.origins)

    def load(
        self,
        buffer: str,
        index: sympy.Expr,
        dtype: torch.dtype,
        mask: Value | None = None,
        other: Number | None = None,
    ) -> Value:
        if self.mask is not None:
            mask = self.mask if mask is None else self.recorder.elementwise("and", self.mask, mask)
        return self.recorder.load(buffer, index, dtype, mask, other)

    def store(self, buffer: str, index: sympy.Expr, value: Value, mode: str | None = None) -> None:
        self.recorder.store(buffer, index, value, mode)

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Value:
        return self.recorder.index_expr(expr, dtype)

    def indirect(self, value: Value, size: sympy.Expr) -> sympy.Symbol:
        if self.mask is not None:
            zero = self.recorder.constant(0, self.recorder.dtypes[value.name])
            value = self.recorder.elementwise("where", self.mask, value, zero)
        return self.recorder.indirect(value, size)

    def constant(self, number: Number, dtype: torch.dtype) -> Value:
        return self.recorder.constant(number, dtype)

    def convert(self, op: str, value: Value, dtype: torch.dtype) -> Value:
        return self.recorder.convert(op, value, dtype)

    def elementwise(self, op: str, *operands: Value) -> Value:
        return self.recorder.elementwise(op, *operands)

    def collective(self, op: str, kind: str, value: Value, dtype: torch.dtype | None) -> Value:
        return self.recorder.collective(op, kind, value, dtype)


def joined_index(
    dims: Sequence[int], inside: Sequence[sympy.Expr], outside: Sequence[sympy.Expr]
) -> Index:
    """Combines two index parts: ``inside`` for the dims in ``dims`` and ``outside`` for the others,
    both in order.
    """
    chosen, others = iter(inside), iter(outside)
    rank = len(inside) + len(outside)
    return tuple(next(chosen) if d in dims else next(others) for d in range(rank))


def same_strides(shape: Shape, a: Shape, b: Shape) -> bool:
    """Whether two stride tuples place every element at the same offset."""
    return a == b or all(size == 1 or x == y for size, x, y in zip(shape, a, b, strict=True))
