"""What lowering produces: buffers, loop nodes and extern nodes in an order that respects their
dependencies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import sympy
import torch

from .kernel import Instruction, Range
from .simplify import Facts, product

Shape: TypeAlias = tuple[sympy.Expr, ...]
Origin: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory: its storage begins at the first element."""

    name: str
    dtype: torch.dtype
    device: torch.device
    shape: Shape
    stride: Shape

    @property
    def numel(self) -> sympy.Expr:
        """The number of elements between the first and the last, both included."""
        if self.stride == contiguous_strides(self.shape):
            return product(self.shape)
        span = sympy.Integer(1)
        for size, step in zip(self.shape, self.stride, strict=True):
            span += (size - 1) * step
        return sympy.Integer(0) if any(size == 0 for size in self.shape) else sympy.expand(span)


@dataclass(frozen=True, slots=True)
class View:
    """A strided reinterpretation of a buffer; ``offset`` in elements."""

    buffer: str
    shape: Shape
    stride: Shape
    offset: sympy.Expr


@dataclass(frozen=True, slots=True)
class Item(View):
    """The only element of a view, as a Python number: an output that sizes and the caller's floats
    determine.
    """


@dataclass(frozen=True, slots=True)
class Access:
    """A load of a loop node."""

    buffer: str
    index: sympy.Expr
    masked: bool


@dataclass(frozen=True, slots=True)
class LoopNode:
    """One operation on a whole buffer: ``program`` runs per point of ``ranges`` x ``reduction``,
    then ``epilogue`` per point of ``ranges`` (empty unless ``kind`` is "reduction"). Kinds:
    pointwise, reduction, scan, scatter. ``is_part``: others write the buffer's other elements.
    """

    buffer: str
    kind: str
    ranges: tuple[Range, ...]
    reduction: tuple[Range, ...]
    program: tuple[Instruction, ...]
    epilogue: tuple[Instruction, ...]
    reads: tuple[Access, ...]
    store_index: sympy.Expr
    origins: tuple[Origin, ...]
    is_part: bool = False

    @property
    def read_names(self) -> frozenset[str]:
        """Buffers that this node reads."""
        return frozenset(access.buffer for access in self.reads)


@dataclass(frozen=True, slots=True)
class Symbolic:
    """A size, or what Python computes from sizes, among the arguments of an extern call."""

    expr: sympy.Expr


# View, Symbolic, constants, and tuples, lists and dicts of these
ExternArgument: TypeAlias = object


@dataclass(frozen=True, slots=True)
class Bind:
    """Where an extern call defines a size symbol: of result ``result``, the size of ``dim``, or its
    value when that is None.
    """

    symbol: sympy.Symbol
    result: int
    dim: int | None


@dataclass(frozen=True, slots=True)
class ExternNode:
    """A call of ``op``; ``results`` has a buffer name per output (None: no tensor or not used).
    ``single``: the call returns one value and not a sequence. ``aliases``: results may share memory
    with arguments.
    """

    op: Callable[..., object]
    args: tuple[ExternArgument, ...]
    kwargs: tuple[tuple[str, ExternArgument], ...]
    results: tuple[str | None, ...]
    single: bool
    binds: tuple[Bind, ...]
    origins: tuple[Origin, ...]
    aliases: bool = False

    @property
    def read_names(self) -> frozenset[str]:
        """Buffers among the arguments."""
        return frozenset(view.buffer for view in views_in((self.args, [v for _, v in self.kwargs])))


def views_in(argument: ExternArgument) -> list[View]:
    """All views in a nest of arguments, in order."""
    if isinstance(argument, View):
        return [argument]
    if isinstance(argument, tuple | list):
        return [view for item in argument for view in views_in(item)]
    if isinstance(argument, dict):
        return [view for item in argument.values() for view in views_in(item)]
    return []


Node: TypeAlias = LoopNode | ExternNode


@dataclass(slots=True)
class LoweredGraph:
    """The nodes of a graph. ``inputs`` are buffer names or size symbols, one per placeholder (None:
    unused kind); ``outputs`` views, items, sizes, numbers or None; ``constants`` maps buffer names
    to tensors; the caller gives up the memory of inputs in ``donated``; ``written`` maps results
    that nobody else reads to the input that they are copied to; inputs in ``numbers`` are Python
    floats, in memory as float64; conditions on sizes in ``required``, with what to say, hold.
    """

    buffers: dict[str, Buffer] = field(default_factory=dict)
    inputs: list[str | sympy.Symbol | None] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[object] = field(default_factory=list)
    donated: set[str] = field(default_factory=set)
    written: dict[str, str] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    required: list[tuple[sympy.Basic, str]] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)


def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides."""
    strides: list[sympy.Expr] = []
    step = sympy.Integer(1)
    for size in reversed(shape):
        strides.append(step)
        step = step if size == 0 else product((step, size))
    return tuple(reversed(strides))
