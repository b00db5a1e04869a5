"""A program in plain data, for reports: calls in order with the bytes that each moves, and when
each buffer lives. Sizes are those of the example call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod

import sympy

from loopir.ir.expr import example_value, format_expr
from loopir.ir.node import Buffer, ExternNode, View
from loopir.ir.program import Allocate, ExternCall, Free, Launch, MakeView, Program
from loopir.ir.simplify import product

from .host_writer import op_name
from .runs import size_in_bytes

_PRODUCTS = {"mm": 0, "bmm": 0, "linear": 0, "addmm": 1, "baddbmm": 1}
"""Matrix products, with the position of the first factor among the tensors."""


@dataclass(frozen=True, slots=True)
class CallSummary:
    """A launch or an extern call.

    Attributes:
        name: of the kernel, or of the operator.
        kernel: the kernel's position in the program; None for an operator.
        reads: the buffers that it reads, in order.
        writes: the buffers that it writes.
        bytes_read: what it loads from memory if each element is loaded once.
        bytes_written: what it stores.
        operations: multiplications and additions of a matrix product or convolution; else 0.
        origins: (graph node, user line) pairs of what it computes.
    """

    name: str
    kernel: int | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    operations: int
    origins: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class BufferSummary:
    """A buffer; ``birth`` and ``death`` count the calls before it is allocated, and before it is
    freed. ``kind``: "input", "constant", "result" or "intermediate". ``memory`` is the buffer whose
    memory it has, itself unless it reuses that of a dead one.
    """

    name: str
    kind: str
    dtype: str
    shape: str
    size: int
    birth: int = 0
    death: int | None = None
    memory: str = ""


@dataclass(slots=True)
class ProgramSummary:
    """The calls of a program in order, and its buffers by name."""

    calls: list[CallSummary] = field(default_factory=list)
    buffers: dict[str, BufferSummary] = field(default_factory=dict)


def summarize(program: Program) -> ProgramSummary:
    """The calls and buffers of a program."""
    return _Summary(program).run()


class _Summary:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.found = ProgramSummary()
        self.owner: dict[str, str] = {}
        self.sizes = {n: self._value(size_in_bytes(b)) for n, b in program.buffers.items()}

    def run(self) -> ProgramSummary:
        program = self.program
        inputs = [entry for entry in program.inputs if isinstance(entry, str)]
        results = {view.buffer for view in program.outputs if isinstance(view, View)}
        for name, buffer in program.buffers.items():
            kind = "intermediate"
            for group, what in ((results, "result"), (inputs, "input")):
                kind = what if name in group else kind
            kind = "constant" if name in program.constants else kind
            shape = f"[{', '.join(map(format_expr, buffer.shape))}]"
            dtype = str(buffer.dtype).removeprefix("torch.")
            size = self.sizes[name]
            self.found.buffers[name] = BufferSummary(name, kind, dtype, shape, size, memory=name)
        for step in program.steps:
            self._step(step)
        return self.found

    def _step(self, step: object) -> None:
        calls, buffers = self.found.calls, self.found.buffers
        match step:
            case Allocate(buffer, reuses):
                buffers[buffer].birth = len(calls)
                if reuses is not None:
                    buffers[buffer].memory = buffers[reuses].memory
                    if buffers[reuses].death is None:
                        buffers[reuses].death = len(calls)
            case Free(name) if name in buffers:
                buffers[name].death = len(calls)
            case MakeView(name, view):
                self.owner[name] = view.buffer
            case Launch():
                calls.append(self._launch(step))
            case ExternCall(node):
                for name in node.result_names:
                    buffers[name].birth = len(calls)
                calls.append(self._extern(node))
            case _:
                pass

    def _launch(self, launch: Launch) -> CallSummary:
        kernel = self.program.kernels[launch.kernel]
        reads, writes, loaded, stored = [], [], 0, 0
        for declared, name in zip(kernel.buffers, launch.buffers, strict=True):
            size = self._value(declared.numel) * declared.dtype.itemsize
            if declared.role != "out":
                reads.append(name)
                loaded += size
            if declared.role != "in":
                writes.append(name)
                stored += size
        return CallSummary(
            kernel.name,
            launch.kernel,
            self._owners(reads),
            self._owners(writes),
            loaded,
            stored,
            0,
            kernel.origins,
        )

    def _extern(self, node: ExternNode) -> CallSummary:
        views, results = node.views, [self.program.buffers[name] for name in node.result_names]
        loaded = sum(self._size(view) for view in views)
        stored = 0 if node.aliases else sum(map(self._size, results))
        return CallSummary(
            op_name(node.op),
            None,
            self._owners(view.buffer for view in views),
            tuple(node.result_names),
            0 if node.aliases else loaded,
            stored,
            self._operations(node, results),
            node.origins,
        )

    def _operations(self, node: ExternNode, results: list[Buffer]) -> int:
        """Those of an operator that multiplies matrices; 0 for others."""
        name = getattr(getattr(node.op, "overloadpacket", None), "__name__", "")
        shapes = [[self._value(size) for size in view.shape] for view in node.views]
        if not results or len(shapes) < 2:
            return 0
        outputs = prod(self._value(size) for size in results[0].shape)
        if name in _PRODUCTS and len(shapes) > _PRODUCTS[name]:
            first = shapes[_PRODUCTS[name]]
            return 2 * outputs * (first[-1] if first else 1)
        if name.startswith("convolution") and "backward" not in name:
            return 2 * outputs * prod(shapes[1][1:])
        return 0

    def _size(self, tensor: View | Buffer) -> int:
        buffer = self.program.buffers.get(getattr(tensor, "buffer", ""))
        if buffer is None and isinstance(tensor, View):
            buffer = self.program.buffers[self.owner[tensor.buffer]]
        dtype = tensor.dtype if isinstance(tensor, Buffer) else buffer.dtype  # type: ignore[union-attr]
        return self._value(product(tensor.shape)) * dtype.itemsize

    def _owners(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._resolved(names))

    def _resolved(self, names: Iterable[str]) -> Iterator[str]:
        for name in dict.fromkeys(names):
            yield self.owner.get(name, name)

    def _value(self, expr: sympy.Expr) -> int:
        return example_value(expr, self.program.hints, 1)
