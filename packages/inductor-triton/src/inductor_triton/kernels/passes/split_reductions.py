"""Splits kernels with few points and long reductions so that the whole device works on them.

A program reduces its row alone, so 64 channels occupy only 64 of 132 multiprocessors. Such a kernel
becomes a sequence: each inner body that reduces becomes one kernel with partial results of chunks
of the reduction and one that combines them and continues with the next body; an inner body that
only stores becomes one kernel without a reduction. Values that later kernels need are stored in
scratch buffers, or computed again if that takes no reduction.

A mean and the squared distances from it, two bodies, take one pass (``moments.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import sympy
from loopir import (
    Body,
    Instruction,
    Kernel,
    KernelBuffer,
    Range,
    Value,
    accessed,
    choose,
    definitions,
    flat_position,
    kernel_label,
    steps_of,
    symbol,
)

from inductor_triton.kernels.heuristics import MULTIPROCESSORS
from inductor_triton.kernels.indexing import integer, merge_loops
from inductor_triton.kernels.tiling import choose_tiling, describe

from .chunks import Chunks, chunks_of, chunks_of_any_size, tiles, with_long_rows
from .moments import Squares, of_chunk, of_chunks, squares_of

PROGRAMS, MOST_PROGRAMS = 4 * MULTIPROCESSORS, 32 * MULTIPROCESSORS
SMALLEST_SHARE = 128 * 1024
"""Bytes that a program must read for a split to be worth two more launches (about 4 us each way).
"""
GATHERED_BYTES = 32
"""Cost in bytes of reading an element at an index from memory: one multiprocessor has few such
reads in flight (8192 logits at their targets took 9 us on an H200).
"""
WHOLE, TILES, CHUNKS = "whole", "tiles", "chunks"
COMBINED = {"sum", "prod", "max", "min", "any", "all"}
"""Reductions whose partial results are combined by the same operation."""
PADDED = {"sum"}
"""Those to which the rest of a last chunk, which is shorter, adds zeros."""


@dataclass(frozen=True, slots=True)
class Split:
    """Kernels that run in order instead of one, and the buffers between them."""

    parts: tuple[Kernel, ...]
    scratch: tuple[KernelBuffer, ...]


def split_reduction(kernel: Kernel) -> Split | None:
    """The split of ``kernel``; None if a single launch is better or the kernel can't be split."""
    flat = merge_loops(kernel)
    if not _splittable(flat):
        return None
    if flat.sizes:
        flat = with_long_rows(flat)
    text = choose("splits of reductions", partial(kernel_label, flat), _preferred(flat), _is_split)
    kind, _, count = text.partition(" ")
    if kind == WHOLE:
        return None
    cut = chunks_of_any_size if flat.sizes else tiles if kind == TILES else chunks_of
    chunks = cut(flat, int(count))
    return None if chunks is None else _Splitter(flat, chunks).run()


def _is_split(text: str) -> bool:
    kind, _, count = text.partition(" ")
    return text == WHOLE or (kind in (TILES, CHUNKS) and count.isdigit() and int(count) > 0)


def _preferred(flat: Kernel) -> str:
    """How to split a kernel: in as many tiles, or chunks, or not at all."""
    work = describe(flat)
    tiling = choose_tiling(flat, work)
    programs = prod(-(-(integer(axis.extent) or 1) // axis.block) for axis in tiling.program_axes)
    each = max(work.itemsize, GATHERED_BYTES) if work.gathers else work.itemsize
    share = work.reduction * each * min(tiling.config.x, work.points)
    if programs >= MULTIPROCESSORS or share < SMALLEST_SHARE:
        return WHOLE
    wanted = PROGRAMS if work.inner_contiguous else PROGRAMS * 4 // max(2, tiling.config.num_warps)
    most = MOST_PROGRAMS // programs
    in_tiles = not (flat.sizes or work.inner_contiguous) and tiles(flat, most) is not None
    return f"{TILES} {most}" if in_tiles else f"{CHUNKS} {-(-wanted // programs)}"


def _splittable(kernel: Kernel) -> bool:
    is_fixed = all(integer(item.extent) is not None for item in kernel.ranges)
    kinds = {str(step.args[0]) for step in kernel.steps if step.op == "reduce"}
    is_combined = kinds <= (PADDED if kernel.sizes else COMBINED)
    reduces = bool(kernel.reduction) and "scan" not in kernel.ops
    return reduces and is_fixed and is_combined and _reads_what_is_done(kernel)


def _reads_what_is_done(kernel: Kernel) -> bool:
    """Whether every buffer that is both read and written is read only in bodies after those that
    write it.
    """
    written: dict[str, int] = {}
    for place, body in enumerate(kernel.bodies):
        written |= dict.fromkeys(accessed(body.instructions, "store"), place)
    return all(
        place > written.get(buffer, -1)
        for place, body in enumerate(kernel.bodies)
        for buffer in accessed(body.instructions, "load")
    )


@dataclass(slots=True)
class _Splitter:
    """Splits a kernel body by body. ``known`` has the instructions that can be computed again,
    ``saved`` the scratch buffers of results.
    """

    kernel: Kernel
    chunks: Chunks
    parts: list[Kernel] = field(default_factory=list)
    scratch: list[KernelBuffer] = field(default_factory=list)
    known: dict[str, Instruction] = field(default_factory=dict)
    saved: dict[str, str] = field(default_factory=dict)

    def run(self) -> Split:
        bodies = list(self.kernel.bodies)
        while bodies:
            squares = () if self.kernel.sizes else squares_of(bodies, 0)
            body = bodies.pop(0)
            if body.inner and any(step.op == "reduce" for step in body.instructions):
                afters = [self._after(bodies)]
                if squares:
                    bodies.pop(0)
                    afters.append(self._after(bodies))
                self._reduce(body, squares, afters, last=not bodies)
            elif body.inner:
                self._everywhere(body.instructions)
            else:
                self._remember(body.instructions)
                if accessed(body.instructions, "store"):
                    self._outside(body.instructions, bodies)
        return Split(tuple(self.parts), tuple(self.scratch))

    def _everywhere(self, instructions: tuple[Instruction, ...]) -> None:
        """Adds a kernel without a reduction for each point of all loops."""
        loops = (*self.kernel.ranges, *self.kernel.reduction)
        if self.kernel.ranges and self._along_ranges():
            loops = (*self.kernel.reduction, *self.kernel.ranges)
        self._add(loops, (), [Body(False, self._with_closure(instructions))])

    def _after(self, bodies: list[Body]) -> tuple[Instruction, ...]:
        return bodies.pop(0).instructions if bodies and not bodies[0].inner else ()

    def _outside(self, stores: tuple[Instruction, ...], bodies: list[Body]) -> None:
        """Emits stores before the first reduction: with the body that follows it, or as a kernel of
        their own.
        """
        written = accessed(stores, "store")
        if (
            len(bodies) > 1
            and not bodies[1].inner
            and written.isdisjoint(accessed(bodies[0].instructions))
            and _reduces(bodies[0])
        ):
            bodies[1] = Body(False, (*stores, *bodies[1].instructions))
        else:
            self._add(self.kernel.ranges, (), [Body(False, self._with_closure(stores))])

    def _reduce(
        self, body: Body, squares: Squares, afters: list[tuple[Instruction, ...]], last: bool
    ) -> None:
        """Adds two kernels: one with partial results by chunk, and one that combines them and runs
        the instructions after each.
        """
        ranges, total = self.kernel.ranges, prod(int(item.extent) for item in self.kernel.ranges)
        count = prod(int(item.extent) for item in self.chunks.outer)
        apart = accessed(body.instructions, "store") if self.chunks.last is not None else set()
        summed = tuple(step for step in body.instructions if not (apart and step.op == "store"))
        inside = self.chunks.within(summed)
        chunk = Range(symbol("chunk"), sympy.Integer(count))
        found = [_reduces(body), [square.step for square in squares]]
        partial = {
            str(step.result): self._buffer(step, total * count) for step in (*found[0], *found[1])
        }
        place = flat_position((*self.chunks.outer, *ranges))
        stores = tuple(
            _store(partial[str(step.result)], place, step) for step in (*found[0], *found[1])
        )
        length = self.chunks.length if squares else 0
        middle = [Body(inner, self.chunks.within(own)) for inner, own in of_chunk(squares, length)]
        before = self._closure((*inside, *steps_of(middle)))
        first = [Body(False, before), Body(True, inside), *middle, Body(False, stores)]
        self._add((*self.chunks.outer, *ranges), self.chunks.inner, first)
        if apart:  # stores have no mask, and may overwrite what was summed
            self._everywhere(tuple(step for step in body.instructions if step.op != "reduce"))

        def load(name: str, suffix: str) -> Instruction:
            dtype = next(step.dtype for step in (*found[0], *found[1]) if step.result == name)
            return Instruction(
                f"{name}_{suffix}",
                "load",
                (partial[name], _place(chunk, ranges), None, None),
                dtype,
            )

        sums: list[Instruction] = []
        for step in found[0]:
            part = load(str(step.result), "part")
            sums += [part, replace(step, args=(step.args[0], Value(str(part.result))))]
        combined: list[Body] = []
        defined: set[str] = set()
        inners = [tuple(sums), of_chunks(squares, length, load)]
        for inner, then, reduces, after in zip(inners, [*inners[1:], ()], found, afters):
            buffers = (
                {} if last else {str(step.result): self._buffer(step, total) for step in reduces}
            )
            keep = tuple(
                _store(buffers[str(step.result)], flat_position(ranges), step)
                for step in reduces
                if buffers
            )
            defined |= {str(step.result) for step in reduces}
            outer = (*self._closure((*after, *then), defined), *keep, *after)
            defined |= {str(step.result) for step in outer}
            combined += [Body(True, inner), Body(False, outer)]
            self.saved |= buffers
            self._remember(after)
        self._add(ranges, (chunk,), combined)

    def _along_ranges(self) -> bool:
        return (
            self.kernel.vector_axis is not None
            and self.kernel.vector_axis == self.kernel.ranges[-1].symbol
        )

    def _remember(self, instructions: tuple[Instruction, ...]) -> None:
        self.known |= definitions(instructions)

    def _with_closure(self, instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return (*self._closure(instructions), *instructions)

    def _closure(
        self, instructions: tuple[Instruction, ...], defined: set[str] | None = None
    ) -> tuple[Instruction, ...]:
        """The instructions that define the values from earlier parts that ``instructions`` use."""
        done = {str(step.result) for step in instructions} | (defined or set())
        found: list[Instruction] = []
        pending = [
            (name, False) for step in reversed(instructions) for name in reversed(step.reads)
        ]
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
            pending += [(use, False) for use in step.reads]
        return tuple(found)

    def _reload(self, name: str) -> Instruction:
        buffer = next(item for item in self.scratch if item.name == self.saved[name])
        return Instruction(
            name, "load", (buffer.name, flat_position(self.kernel.ranges), None, None), buffer.dtype
        )

    def _buffer(self, step: Instruction, size: int) -> str:
        assert step.dtype is not None
        name = f"scratch{len(self.scratch)}"
        self.scratch.append(KernelBuffer(name, step.dtype, "out", sympy.Integer(size)))
        return name

    def _add(
        self, ranges: tuple[Range, ...], reduction: tuple[Range, ...], bodies: list[Body]
    ) -> None:
        bodies = [body for body in bodies if body.instructions]
        touched: dict[str, str] = {}
        for step in steps_of(bodies):
            if step.is_access:
                touched[str(step.args[0])] = step.op
        roles = {"load": "in", "store": "out"}
        read = accessed(steps_of(bodies), "load")
        given = [
            replace(item, role="in") if item.role == "out" and item.name in read else item
            for item in self.kernel.buffers
            if item.name in touched
        ]
        own = [
            replace(item, role=roles[touched[item.name]])
            for item in self.scratch
            if item.name in touched
        ]
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


def _reduces(body: Body) -> list[Instruction]:
    return [step for step in body.instructions if step.op == "reduce"]


def _place(chunk: Range, ranges: tuple[Range, ...]) -> sympy.Expr:
    return flat_position((chunk, *ranges))


def _store(buffer: str, place: sympy.Expr, step: Instruction) -> Instruction:
    return Instruction(None, "store", (buffer, place, Value(str(step.result)), None), None)
