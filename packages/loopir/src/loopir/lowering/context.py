"""The state while one graph is lowered: the buffers and nodes created so far, and the functions
that store a lazy tensor in a buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import sympy
import torch
from sympy.core.function import Application
from symshapes import Interval, bound, expr_of, statically_known_true

from loopir.errors import LoweringError
from loopir.ir.expr import INDEX_FUNCTIONS, is_index_expr, operands, symbol, symbols_of
from loopir.ir.host_functions import above_zero, below_zero, restride
from loopir.ir.kernel import Range, Value
from loopir.ir.node import (
    Bind,
    Buffer,
    ExternNode,
    LoopNode,
    LoweredGraph,
    Origin,
    Shape,
    Symbolic,
    contiguous_strides,
)
from loopir.ir.simplify import ONE, ZERO, extents_of, product
from loopir.options import Options

from .record import SimplifyingRecorder, accesses, split_loops
from .tensor import Cost, Index, Lazy, Strided, Tensor, TracingOps, same_strides

LOOP_DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
})  # fmt: skip


class LoweringContext:
    """The context passed to every lowering rule. Realising a tensor appends nodes to ``graph``;
    ``origin`` names the node being lowered; extern calls define the symbols ``bound_sizes``.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.graph = LoweredGraph()
        self.facts = self.graph.facts
        self.origin: Origin = ("", "")
        self.bound_sizes: set[sympy.Symbol] = set()
        self._sizes: dict[tuple[Callable[[int], int], sympy.Expr], sympy.Symbol] = {}
        self._numbers: dict[tuple[sympy.Symbol, torch.device], Tensor] = {}
        self._shapes: dict[tuple[int, ...], Shape] = {}
        self._count = itertools.count()

    # Sizes

    def expr(self, size: object) -> sympy.Expr:
        """A size as an expression over this package's symbols; records the bounds and hints of new
        symbols.
        """
        if isinstance(size, int):
            return sympy.Integer(size)
        if isinstance(size, sympy.Expr):
            return self._indexable(size)
        raw = expr_of(size)
        # A guard proved the size to be 1: the dim is broadcast or needs no loop.
        if not raw.is_Symbol and statically_known_true(size == 1):
            return ONE
        return self._indexable(self.rename(raw, size.node.shape_env))  # type: ignore[attr-defined]

    def rename(self, raw: sympy.Expr, env: object) -> sympy.Expr:
        """Replaces the symbols of an expression by this package's. An integer symbol that may be
        negative becomes a difference of two symbols where its sign matters.
        """
        renamed = {}
        for free in raw.free_symbols:
            if not free.is_integer:
                continue
            known = symbol(free.name)  # type: ignore[attr-defined]
            renamed[free] = known
            if known not in self.facts.lower:
                self._learn(known, free, env)  # type: ignore[arg-type]
            if known in self.facts.signed and raw.has(
                Application, sympy.core.relational.Relational
            ):
                renamed[free] = self._difference(known)
        return raw.xreplace(renamed)  # type: ignore[return-value]

    def _indexable(self, expr: sympy.Expr) -> sympy.Expr:
        """Replaces the parts of ``expr`` that kernels can't compute, like ``int(1.5 * n)``, by
        symbols that the host computes.
        """
        if is_index_expr(expr):
            return expr
        if isinstance(expr, INDEX_FUNCTIONS) and all(arg.is_integer for arg in operands(expr)):
            return expr.func(*map(self._indexable, operands(expr)))  # type: ignore[return-value]
        if bound(expr, lambda free: Interval(self.facts.lower.get(free, 0))).lo >= 0:
            return self._computed(int, expr)
        return self._difference(expr)

    def _difference(self, expr: sympy.Expr) -> sympy.Expr:
        """``expr`` as a difference of two symbols, since symbols are never negative."""
        return self._computed(above_zero, expr) - self._computed(below_zero, expr)

    def _computed(self, function: Callable[[int], int], expr: sympy.Expr) -> sympy.Symbol:
        """The symbol that the host sets to ``function(expr)``."""
        if any(not free.is_integer for free in expr.free_symbols):
            raise self.fail(f"the size {expr} depends on a number that only the device knows")
        if (function, expr) not in self._sizes:
            made = self._sizes[function, expr] = symbol(f"size{len(self._sizes)}")
            self.facts.lower[made] = 0
            if symbols_of(expr) <= self.facts.hints.keys():
                self.facts.hints[made] = function(self.facts.hint(expr))
            self.add_extern(function, (Symbolic(expr),), (None,), binds=(Bind(made, 0, None),))
        return self._sizes[function, expr]

    def _learn(self, known: sympy.Symbol, free: sympy.Symbol, env: object) -> None:
        low, _ = env.bounds(free)  # type: ignore[attr-defined]
        if low < 0:
            self.facts.signed.add(known)
        self.facts.lower[known] = int(low) if low > 0 else 0
        if not env.is_unbacked_symint(free):  # type: ignore[attr-defined]
            self.facts.hints[known] = int(env.hint_of(free))  # type: ignore[attr-defined]

    def shape(self, sizes: Sequence[object]) -> Shape:
        """A shape as expressions, one for each size."""
        if {*map(type, sizes)} - {int}:
            return tuple(self.expr(size) for size in sizes)
        given: tuple[int, ...] = (*sizes,)  # type: ignore[assignment]
        if given not in self._shapes:
            self._shapes[given] = tuple(map(sympy.Integer, given))
        return self._shapes[given]

    # Buffers

    def new_buffer(
        self, dtype: torch.dtype, device: torch.device, shape: Shape, stride: Shape | None = None
    ) -> Buffer:
        """Registers and returns a new buffer, contiguous unless ``stride`` is given."""
        stride = contiguous_strides(shape) if stride is None else stride
        return self.add_buffer(Buffer(f"buf{next(self._count)}", dtype, device, shape, stride))

    def add_buffer(self, buffer: Buffer) -> Buffer:
        """Registers a buffer."""
        self.graph.buffers[buffer.name] = buffer
        return buffer

    @staticmethod
    def whole(buffer: Buffer) -> Strided:
        """The whole buffer as a tensor."""
        return Strided(buffer.name, buffer.dtype, buffer.device, buffer.shape, buffer.stride, ZERO)

    # Floats known only at run time

    def add_number(self, name: str, size: object, device: torch.device) -> str:
        """Adds a one-element buffer on a device for an input that is a symbolic float; returns the
        buffer's name.
        """
        self.set_number(
            size, self.whole(self.add_buffer(Buffer(name, torch.float64, device, (), ())))
        )
        self.graph.numbers.add(name)
        return name

    def set_number(self, size: object, scalar: Tensor) -> None:
        """Records which one-element tensor has the value of a symbolic float."""
        value = expr_of(size)
        if any(known == value for known, _ in self._numbers):
            raise self.fail(f"two numbers have the symbol {value}")
        self._numbers[value, scalar.device] = scalar

    def number(self, float_symbol: sympy.Symbol, device: torch.device) -> Tensor:
        """The value of a symbolic float, as a tensor that loops on ``device`` can read."""
        found = self._numbers.get((float_symbol, device))
        if found is None:
            known = [tensor for (name, _), tensor in self._numbers.items() if name == float_symbol]
            if not known:
                raise self.fail(f"the value of the symbolic float {float_symbol} is in no tensor")
            found = self._numbers[float_symbol, device] = self.on_device(known[0], device)
        return found

    def on_device(self, tensor: Tensor, device: torch.device) -> Tensor:
        """Copies a scalar to another device."""
        source, buffer = self.realize(tensor), self.new_buffer(tensor.dtype, device, tensor.shape)
        self.copy_to_device(torch.ops.aten._to_copy.default, source, buffer, device)
        return self.whole(buffer)

    # Realisation

    def realize(self, tensor: Tensor, stride: Shape | None = None) -> Strided:
        """Stores the tensor in memory unless it is there already; with ``stride``, copies it if its
        strides differ.
        """
        if isinstance(tensor, Strided) and (
            stride is None or same_strides(tensor.shape, tensor.stride, stride)
        ):
            return tensor
        if isinstance(tensor, Strided):
            return self.copy(tensor, stride)
        wanted = stride if stride is not None else tensor.layout
        if wanted is None or not self.is_dense(tensor.shape, wanted):
            wanted = contiguous_strides(tensor.shape)
        return self.fill(tensor, wanted)

    def lay_out(self, tensor: Tensor, stride: Shape) -> Strided:
        """Stores the tensor in memory with exactly these strides, which may leave gaps or, where 0,
        repeat one element.
        """
        if isinstance(tensor, Strided) and same_strides(tensor.shape, tensor.stride, stride):
            return tensor
        return self.lay_out_anew(tensor, stride)

    def lay_out_anew(self, tensor: Tensor, stride: Shape) -> Strided:
        """Like ``lay_out``, but always allocates a new buffer."""
        shape = tuple(
            ONE if step == 0 else size for size, step in zip(tensor.shape, stride, strict=True)
        )
        distinct = replace(tensor, shape=shape)
        if tensor.dtype in LOOP_DTYPES and self.facts.is_separate(shape, stride):
            return replace(self.fill(distinct, stride), shape=tensor.shape)
        return self.restride(self.realize(tensor), stride)

    def copy(self, tensor: Strided, stride: Shape | None = None) -> Strided:
        """Copies ``tensor`` to a new buffer, contiguous unless ``stride`` is given; calls an
        operator for dtypes that loops don't support.
        """
        wanted = (
            stride
            if stride is not None and self.is_dense(tensor.shape, stride)
            else contiguous_strides(tensor.shape)
        )
        if tensor.dtype in LOOP_DTYPES:
            return self.fill(tensor, wanted)
        return self.restride(tensor, wanted)

    def fill(self, tensor: Tensor, stride: Shape) -> Strided:
        """Copies ``tensor`` to a new buffer with a loop."""
        buffer = self.new_buffer(tensor.dtype, tensor.device, tensor.shape, stride)
        result = self.whole(buffer)
        self.add_pointwise(buffer, tensor.shape, tensor.load, result.position)
        return result

    def restride(self, tensor: Strided, stride: Shape) -> Strided:
        """Copies ``tensor`` to arbitrary strides with an extern call."""
        buffer = self.new_buffer(tensor.dtype, tensor.device, tensor.shape, stride)
        sizes = [tuple(map(Symbolic, each)) for each in (tensor.shape, stride)]
        self.add_extern(restride, (tensor.view, *sizes), (buffer.name,))
        return self.whole(buffer)

    def layout_like(self, tensor: Tensor, shape: Shape) -> Shape | None:
        """Dense strides of ``shape``, with its dims in the memory order of ``tensor``; None when
        that order is unknown.
        """
        if tensor.layout is None:
            return None
        hint = self.facts.hint
        dims = sorted(
            (hint(step), hint(size), -d)
            for d, (step, size) in enumerate(zip(tensor.layout, tensor.shape, strict=True))
        )
        if any(step < 1 and size != 1 for step, size, _ in dims):
            return None
        strides, step = list(shape), ONE
        for *_, d in dims:
            strides[-d], step = step, product((step, shape[-d]))
        return tuple(strides)

    def is_dense(self, shape: Shape, stride: Shape) -> bool:
        """Whether the strides are those of a contiguous tensor with its dims permuted."""
        return self.facts.is_dense(shape, stride)

    def _loops(self, shape: Shape, prefix: str) -> tuple[list[Range], Index]:
        loops, index = [], []
        for size in shape:
            if size == 1:
                index.append(ZERO)
                continue
            loops.append(Range(symbol(f"{prefix}{len(loops)}"), size))
            index.append(loops[-1].symbol)
        return loops, tuple(index)

    def _ops(self, buffer: Buffer, *nests: Sequence[Range]) -> TracingOps:
        """An ops handler that records the instructions of these loops."""
        return TracingOps(SimplifyingRecorder(self.facts, extents_of(*nests)), buffer.device)

    def add_pointwise(
        self,
        buffer: Buffer,
        shape: Shape,
        load: Callable[..., Value],
        position: Callable[[Index], sympy.Expr],
        is_part: bool = False,
    ) -> None:
        """Adds a node that stores ``load`` at ``position`` for every index of ``shape``;
        ``is_part``: other nodes write the buffer's other elements.
        """
        loops, index = self._loops(shape, "d")
        ops = self._ops(buffer, loops)
        ops.store(buffer.name, position(index), load(ops, index))
        self._add_loop(buffer, "pointwise", ops, loops, is_part=is_part)

    def add_reduction(
        self,
        buffer: Buffer,
        outer: Shape,
        inner: Shape,
        function: Callable[..., Value],
        kind: str,
        dtype: torch.dtype,
    ) -> None:
        """Adds a node that reduces ``function(ops, outer index, inner index)`` over the inner index
        and stores the result.
        """
        loops, index = self._loops(outer, "d")
        reduced, inner_index = self._loops(inner, "q")
        reduced = reduced or [Range(symbol("q0"), ONE)]
        ops = self._ops(buffer, loops, reduced)
        result = ops.reduce(kind, function(ops, index, inner_index), dtype)
        inside = len(ops.recorder.instructions)
        ops.store(buffer.name, self.whole(buffer).position(index), result)
        self._add_loop(buffer, "reduction", ops, loops, reduced, inside)

    def add_scan(
        self, buffer: Buffer, shape: Shape, dim: int, function: Callable[..., Value], kind: str
    ) -> None:
        """Adds a node that stores the inclusive scan of ``function(ops, index)`` along ``dim``."""
        outer, index = self._loops((*shape[:dim], ONE, *shape[dim + 1 :]), "d")
        along = Range(symbol("q0"), shape[dim])
        index = (*index[:dim], along.symbol, *index[dim + 1 :])
        ops = self._ops(buffer, outer, [along])
        value = ops.cast(ops.scan(kind, function(ops, index)), buffer.dtype)
        ops.store(buffer.name, self.whole(buffer).position(index), value)
        self._add_loop(buffer, "scan", ops, outer, [along])

    def add_scatter(
        self, buffer: Buffer, shape: Shape, store: Callable[[TracingOps, Index], None]
    ) -> None:
        """Adds a node that runs ``store`` for every index of ``shape``; the buffer is already
        initialised.
        """
        loops, index = self._loops(shape, "d")
        ops = self._ops(buffer, loops)
        store(ops, index)
        self._add_loop(buffer, "scatter", ops, loops)

    def _add_loop(
        self,
        buffer: Buffer,
        kind: str,
        ops: TracingOps,
        loops: list[Range],
        reduced: Sequence[Range] = (),
        inside: int | None = None,
        is_part: bool = False,
    ) -> None:
        """Adds a node with the instructions that ``ops`` recorded; those from index ``inside`` on
        are its epilogue.
        """
        steps = ops.recorder.instructions
        inside = len(steps) if inside is None else inside
        programs = [tuple(steps[:inside]), tuple(steps[inside:])]
        programs, loops = split_loops(programs, loops, self.facts, "d", reduced)
        if kind == "reduction":
            programs, reduced = split_loops(programs, [*reduced], self.facts, "q", loops)
        program, epilogue = programs
        node = LoopNode(
            buffer.name,
            kind,
            tuple(loops),
            tuple(reduced),
            program,
            epilogue,
            reads=accesses(program),
            store_index=next(s.args[1] for s in (epilogue or program) if s.op == "store"),  # type: ignore[arg-type]
            origins=tuple(dict.fromkeys((*reversed(ops.origins), self.origin))),
            is_part=is_part,
        )
        self.graph.nodes.append(node)

    def add_extern(
        self,
        op: Callable[..., object],
        args: tuple[object, ...],
        results: tuple[str | None, ...],
        kwargs: tuple[tuple[str, object], ...] = (),
        single: bool = True,
        binds: tuple[Bind, ...] = (),
        aliases: bool = False,
    ) -> None:
        """Adds an extern call; see :class:`ExternNode`."""
        self.bound_sizes.update(bind.symbol for bind in binds)
        self.graph.nodes.append(
            ExternNode(op, args, kwargs, results, single, binds, (self.origin,), aliases)
        )

    def copy_to_device(
        self, op: Callable[..., object], source: Strided, target: Buffer, device: torch.device
    ) -> None:
        """Adds an extern copy of ``source`` into ``target`` on another device."""
        self.add_extern(op, (source.view,), (target.name,), (("device", device),))

    def fail(self, message: str) -> LoweringError:
        """An error that names the node being lowered and the user's line."""
        name, line = self.origin
        return LoweringError(f"node {name}: {message}" + (f"\n  {line}" if line else ""))


def combined_cost(*tensors: object, weight: int = 1) -> Cost:
    """The cost of an operation on tensors; other operands are free."""
    costs = [tensor.cost for tensor in tensors if isinstance(tensor, Strided | Lazy)]
    return Cost(
        reads=sum(cost.reads for cost in costs),
        weight=weight + sum(cost.weight for cost in costs),
        depth=1 + max((cost.depth for cost in costs), default=0),
        copies=max((cost.copies for cost in costs), default=1),
    )
