"""The result of lowering: buffers, loop nodes and extern nodes in dependency order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import sympy
import torch

from .kernel import Instruction, Range
from .nest import leaves
from .simplify import Facts, product

Shape: TypeAlias = tuple[sympy.Expr, ...]
Origin: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory; its storage begins at the first element."""

    name: str
    dtype: torch.dtype
    device: torch.device
    shape: Shape
    stride: Shape

    @property
    def numel(self) -> sympy.Expr:
        """The number of elements from the first to the last in memory, both included."""
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

    @property
    def expressions(self) -> tuple[sympy.Expr, ...]:
        """The sizes, strides and offset."""
        return (*self.shape, *self.stride, self.offset)

    def is_whole(self, buffer: Buffer) -> bool:
        """Whether the view is the whole buffer."""
        return self.offset == 0 and (self.shape, self.stride) == (buffer.shape, buffer.stride)


@dataclass(frozen=True, slots=True)
class Item(View):
    """The only element of a view, as a Python number: an output that depends on sizes and floats
    passed by the caller.
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
    then ``epilogue`` per point of ``ranges`` (empty unless ``kind`` is "reduction").

    Kinds: pointwise, reduction, scan, scatter. ``is_part``: other nodes write the buffer's other
    elements.
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
        """The buffers that this node reads."""
        return frozenset(access.buffer for access in self.reads)


@dataclass(frozen=True, slots=True)
class Symbolic:
    """A size, or a number that Python computes from sizes, as an argument of an extern call."""

    expr: sympy.Expr


# View, Symbolic, constants, and tuples, lists and dicts of these
ExternArgument: TypeAlias = object


@dataclass(frozen=True, slots=True)
class Bind:
    """Defines a size symbol by an extern call: as the size of dim ``dim`` of result number
    ``result``, or as that result's value if ``dim`` is None.
    """

    symbol: sympy.Symbol
    result: int
    dim: int | None


@dataclass(frozen=True, slots=True)
class ExternNode:
    """A call of ``op``; ``results`` has a buffer name per output (None: not a tensor, or unused).
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
    def views(self) -> list[View]:
        """The views among the arguments, in order."""
        return views_in((self.args, dict(self.kwargs)))

    @property
    def read_names(self) -> frozenset[str]:
        """The buffers among the arguments."""
        return frozenset(view.buffer for view in self.views)

    @property
    def result_names(self) -> list[str]:
        """The buffers among the results."""
        return [name for name in self.results if name]


def views_in(argument: ExternArgument) -> list[View]:
    """All views in a nest of arguments, in order."""
    return [leaf for leaf in leaves(argument) if isinstance(leaf, View)]


def expressions_in(argument: ExternArgument) -> list[sympy.Expr]:
    """All expressions in a nest of arguments, in order."""
    found: list[sympy.Expr] = []
    for leaf in leaves(argument):
        if isinstance(leaf, View):
            found += leaf.expressions
        elif isinstance(leaf, Symbolic):
            found.append(leaf.expr)
    return found


Node: TypeAlias = LoopNode | ExternNode


def is_ordered(node: Node) -> bool:
    """Whether the call draws random numbers or takes part in a collective; such calls keep their
    order.
    """
    if isinstance(node, LoopNode):
        return False
    if getattr(node.op, "namespace", None) == "_c10d_functional":
        return True
    tags = getattr(node.op, "tags", ())
    return any(
        getattr(tag, "name", tag) in ("nondeterministic_seeded", "random", "random_seed", "effect")
        for tag in tags
    ) or (getattr(node.op, "name", None) == "random_seed")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Block:
    """The lowered graph of equal parts. As the ``op`` of an ExternNode it stands for its nodes: the
    call's arguments are a view for each of ``graph.inputs``, its results are the buffers ``made``,
    which hold the outputs that are in no input, under other names. ``tags`` are those of an
    operator.
    """

    name: str
    graph: LoweredGraph
    made: tuple[str, ...]
    tags: tuple[str, ...]

    @classmethod
    def of(cls, name: str, graph: LoweredGraph) -> Block:
        """The block of a graph."""
        made = sorted(graph.output_buffers - graph.input_buffers)
        return cls(name, graph, tuple(made), ("effect",) * any(map(is_ordered, graph.nodes)))

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *args: object) -> object:
        """Never called: the schedule puts the block's steps in the place of a call."""
        raise TypeError(f"{self.name} is no operator")


@dataclass(slots=True)
class LoweredGraph:
    """The nodes of a graph.

    ``inputs`` are buffer names or size symbols, one per placeholder (None: other kinds, unused);
    ``outputs`` are views, items, sizes, numbers or None; ``constants`` maps buffer names to
    tensors; inputs in ``donated`` are given up by the caller, so their memory can be reused;
    ``written`` maps results with no other reader to the input to which they are copied; inputs in
    ``numbers`` are Python floats, stored in memory as float64; ``required`` has conditions on sizes
    that must hold, each with its error message.
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

    @property
    def input_buffers(self) -> set[str]:
        """The buffers among the inputs."""
        return {name for name in self.inputs if isinstance(name, str)}

    @property
    def output_buffers(self) -> set[str]:
        """The buffers of which outputs are views."""
        return {view.buffer for view in self.outputs if isinstance(view, View)}

    def bytes_of(self, name: str) -> int:
        """The bytes of a buffer in the example call, without gaps."""
        buffer = self.buffers[name]
        return self.facts.hint(product(buffer.shape)) * buffer.dtype.itemsize


def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides."""
    strides: list[sympy.Expr] = []
    step = sympy.Integer(1)
    for size in reversed(shape):
        strides.append(step)
        step = step if size == 0 else product((step, size))
    return tuple(reversed(strides))
