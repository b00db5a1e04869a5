"""Kernels with few points and long reductions, split so that the whole device works on them.

A program reduces its row alone, so 64 channels keep 64 of 132 multiprocessors busy. Such a kernel becomes a sequence: for each
inner body that reduces, one kernel with partial results of chunks of the reduction and one that combines them and goes on with
the body after it; for an inner body that only stores, one kernel without a reduction. Values that later kernels need are kept
in scratch buffers or computed again, where that takes no reduction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

import sympy
from loopir import Body, Instruction, Kernel, KernelBuffer, Range, Value

from inductor_triton.heuristics import MULTIPROCESSORS
from inductor_triton.indexing import INDEXED, flat_position, index_of, integer, merge_loops
from inductor_triton.tiling import choose_tiling, describe, steps

PROGRAMS = 4 * MULTIPROCESSORS
SMALLEST_SHARE = 128 * 1024
"""Bytes that a program must read for a split to be worth two more launches (about 4 us each way)."""
SMALLEST_CHUNK = 32
COMBINED = {"sum", "prod", "max", "min", "any", "all"}
"""Reductions whose partial results combine by the same operation."""


@dataclass(frozen=True, slots=True)
class Split:
    """Kernels to run in order in the place of one, and the buffers between them."""

    parts: tuple[Kernel, ...]
    scratch: tuple[KernelBuffer, ...]


def split_reduction(kernel: Kernel) -> Split | None:
    """The split of ``kernel``; None where one launch does better or the kernel can't be split."""
    flat = merge_loops(kernel)
    if not _splittable(flat):
        return None
    work, tiling = describe(flat), choose_tiling(flat)
    programs = prod(-(-(integer(axis.extent) or 1) // axis.block) for axis in tiling.program_axes)
    share = work.reduction * work.itemsize * min(tiling.config.x, work.points)
    if programs >= MULTIPROCESSORS or share < SMALLEST_SHARE:
        return None
    wanted = PROGRAMS if work.inner_contiguous else PROGRAMS * 4 // max(2, tiling.config.num_warps)
    loops = _chunked(flat.reduction, -(-wanted // programs))
    return None if loops is None else _Splitter(flat, *loops).run()


def _splittable(kernel: Kernel) -> bool:
    static = not kernel.sizes and all(integer(item.extent) is not None for item in (*kernel.ranges, *kernel.reduction))
    combined = all(step.args[0] in COMBINED for step in steps(kernel) if step.op == "reduce")
    scans = any(step.op == "scan" for step in steps(kernel))
    return bool(kernel.reduction) and static and combined and not scans and _reads_what_is_done(kernel)


def _reads_what_is_done(kernel: Kernel) -> bool:
    """Whether a buffer that is read and written is read in later bodies only than those that write it."""
    written: dict[object, int] = {}
    for place, body in enumerate(kernel.bodies):
        written |= {step.args[0]: place for step in body.instructions if step.op == "store"}
    reads = [
        (step.args[0], place) for place, body in enumerate(kernel.bodies) for step in body.instructions if step.op == "load"
    ]
    return all(place > written.get(buffer, -1) for buffer, place in reads)


Chunks = tuple[tuple[Range, ...], tuple[Range, ...], dict[sympy.Symbol, sympy.Expr]]


def _chunked(reduction: tuple[Range, ...], wanted: int) -> Chunks | None:
    """The reduction as loops over chunks and loops within a chunk, and what its symbols are in terms of both."""
    outer: list[Range] = []
    replaced: dict[sympy.Symbol, sympy.Expr] = {}
    for position, item in enumerate(reduction):
        extent, missing = int(item.extent), -(-wanted // prod(int(o.extent) for o in outer))
        inner = reduction[position + 1 :]
        if missing <= 1:
            return tuple(outer), reduction[position:], replaced
        if extent <= missing and prod(int(o.extent) for o in inner) >= SMALLEST_CHUNK:
            outer.append(item)
            continue
        room = extent * prod(int(o.extent) for o in inner) // SMALLEST_CHUNK
        counts = [n for n in range(1, min(2 * missing, room, extent) + 1) if extent % n == 0]
        even = [n for n in counts if extent // n * prod(int(o.extent) for o in inner) % SMALLEST_CHUNK == 0]
        count = max(even if 4 * max(even, default=0) > missing else counts, default=1)  # blocks that fill chunks need no masks
        if count == 1:
            return (tuple(outer), reduction[position:], replaced) if outer else None
        chunk = Range(sympy.Symbol(f"{item.symbol.name}_chunk", integer=True, nonnegative=True), sympy.Integer(count))
        length = extent // count
        replaced[item.symbol] = chunk.symbol * length + item.symbol
        return (*outer, chunk), (replace(item, extent=sympy.Integer(length)), *inner), replaced
    return None


@dataclass(slots=True)
class _Splitter:
    """Walks the bodies. ``known`` are instructions that can be computed again, ``saved`` the scratch buffers of results."""

    kernel: Kernel
    chunks: tuple[Range, ...]
    rest: tuple[Range, ...]
    replaced: dict[sympy.Symbol, sympy.Expr]
    parts: list[Kernel] = field(default_factory=list)
    scratch: list[KernelBuffer] = field(default_factory=list)
    known: dict[str, Instruction] = field(default_factory=dict)
    saved: dict[str, str] = field(default_factory=dict)

    def run(self) -> Split:
        bodies = list(self.kernel.bodies)
        while bodies:
            body = bodies.pop(0)
            reduces = [step for step in body.instructions if step.op == "reduce"]
            if body.inner and reduces:
                after = bodies.pop(0).instructions if bodies and not bodies[0].inner else ()
                self._reduce(body, reduces, after, last=not bodies)
            elif body.inner:
                loops = (*self.kernel.ranges, *self.kernel.reduction)
                if self.kernel.ranges and self._along_ranges():
                    loops = (*self.kernel.reduction, *self.kernel.ranges)
                self._add(loops, (), [Body(False, self._with_closure(body.instructions))])
            else:
                self._remember(body.instructions)
                if any(step.op == "store" for step in body.instructions):
                    self._add(self.kernel.ranges, (), [Body(False, self._with_closure(body.instructions))])
        return Split(tuple(self.parts), tuple(self.scratch))

    def _reduce(self, body: Body, reduces: list[Instruction], after: tuple[Instruction, ...], last: bool) -> None:
        """Two parts: partial results by chunk, then their combination and the instructions after it."""
        ranges = self.kernel.ranges
        inside = tuple(self._within_chunk(step) for step in body.instructions)
        size = prod(int(item.extent) for item in (*self.chunks, *ranges))
        place = flat_position((*self.chunks, *ranges))
        partial = {str(step.result): self._buffer(step, size) for step in reduces}
        stores = tuple(_store(partial[str(step.result)], place, step) for step in reduces)
        before = self._closure(inside)
        self._add((*self.chunks, *ranges), self.rest, [Body(False, before), Body(True, inside), Body(False, stores)])
        count = prod(int(item.extent) for item in self.chunks)
        chunk = Range(sympy.Symbol("chunk", integer=True, nonnegative=True), sympy.Integer(count))
        points = flat_position(ranges)
        combine: list[Instruction] = []
        for step in reduces:
            part = Instruction(
                f"{step.result}_part", "load", (partial[str(step.result)], _place(chunk, ranges), None, None), step.dtype
            )
            combine += [part, replace(step, args=(step.args[0], Value(f"{step.result}_part")))]
        total = prod(int(item.extent) for item in ranges)
        buffers = {} if last else {str(step.result): self._buffer(step, total) for step in reduces}
        keep = tuple(_store(buffers[str(step.result)], points, step) for step in reduces if buffers)
        defined = {str(step.result) for step in reduces}
        outer = (*self._closure(after, defined), *keep, *after)
        self._add(ranges, (chunk,), [Body(True, tuple(combine)), Body(False, outer)])
        self.saved |= buffers
        self._remember(after)

    def _along_ranges(self) -> bool:
        return self.kernel.vector_axis is not None and self.kernel.vector_axis == self.kernel.ranges[-1].symbol

    def _remember(self, instructions: tuple[Instruction, ...]) -> None:
        self.known |= {str(step.result): step for step in instructions if step.result is not None}

    def _with_closure(self, instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return (*self._closure(instructions), *instructions)

    def _closure(self, instructions: tuple[Instruction, ...], defined: set[str] | None = None) -> tuple[Instruction, ...]:
        """What defines the values from earlier parts that ``instructions`` use."""
        done = {str(step.result) for step in instructions} | (defined or set())
        found: list[Instruction] = []
        pending = [(name, False) for step in reversed(instructions) for name in reversed(_uses(step))]
        while pending:
            name, ready = pending.pop()
            if name in done or (name not in self.known and name not in self.saved):
                continue
            if name in self.saved:
                done.add(name)
                found.append(self._reload(name))
                continue
            step = self.known[name]
            if ready:
                done.add(name)
                found.append(step)
                continue
            pending.append((name, True))
            pending += [(use, False) for use in _uses(step)]
        return tuple(found)

    def _reload(self, name: str) -> Instruction:
        buffer = next(item for item in self.scratch if item.name == self.saved[name])
        return Instruction(name, "load", (buffer.name, flat_position(self.kernel.ranges), None, None), buffer.dtype)

    def _within_chunk(self, step: Instruction) -> Instruction:
        position = INDEXED.get(step.op)
        if position is None or not self.replaced:
            return step
        args = list(step.args)
        args[position] = sympy.expand(sympy.sympify(args[position]).subs(self.replaced, simultaneous=True))  # type: ignore[call-overload]
        return replace(step, args=tuple(args))

    def _buffer(self, step: Instruction, size: int) -> str:
        assert step.dtype is not None
        name = f"scratch{len(self.scratch)}"
        self.scratch.append(KernelBuffer(name, step.dtype, "out", sympy.Integer(size)))
        return name

    def _add(self, ranges: tuple[Range, ...], reduction: tuple[Range, ...], bodies: list[Body]) -> None:
        bodies = [body for body in bodies if body.instructions]
        touched: dict[str, str] = {}
        for step in (step for body in bodies for step in body.instructions if step.op in ("load", "store")):
            touched[str(step.args[0])] = step.op
        roles = {"load": "in", "store": "out"}
        read = {str(step.args[0]) for body in bodies for step in body.instructions if step.op == "load"}
        given = [
            replace(item, role="in") if item.role == "out" and item.name in read else item
            for item in self.kernel.buffers
            if item.name in touched
        ]
        own = [replace(item, role=roles[touched[item.name]]) for item in self.scratch if item.name in touched]
        name = f"{self.kernel.name}_{len(self.parts)}"
        loops = {item.symbol for item in (*ranges, *reduction)}
        axis = self.kernel.vector_axis if self.kernel.vector_axis in loops else None
        self.parts.append(
            replace(
                self.kernel,
                name=name,
                buffers=(*given, *own),
                ranges=ranges,
                reduction=reduction,
                bodies=tuple(bodies),
                vector_axis=axis,
            )
        )


def _place(chunk: Range, ranges: tuple[Range, ...]) -> sympy.Expr:
    return flat_position((chunk, *ranges))


def _store(buffer: str, place: sympy.Expr, step: Instruction) -> Instruction:
    return Instruction(None, "store", (buffer, place, Value(str(step.result)), None), None)


def _uses(step: Instruction) -> list[str]:
    """Names of the values that an instruction reads, indirect indices included."""
    names = [arg.name for arg in step.args if isinstance(arg, Value)]
    expr = index_of(step)
    return names + ([] if expr is None else sorted(symbol.name for symbol in expr.free_symbols))  # type: ignore[attr-defined]
