"""Builds the kernel of a group of nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy
from symshapes.choices import choose, current, decide
from symshapes.decisions import may

from loopir.ir.body import replay
from loopir.ir.expr import substitute, symbol
from loopir.ir.instruction_rules import remove_dead, with_blocks
from loopir.ir.kernel import (
    Body,
    Instruction,
    Kernel,
    KernelBuffer,
    Range,
    Value,
    accessed,
    map_steps,
    steps_of,
)
from loopir.ir.node import Buffer, LoweredGraph
from loopir.ir.simplify import extents_of
from loopir.lowering.elementwise import COSTLY
from loopir.lowering.record import SimplifyingRecorder
from loopir.options import Options

from .group import Group, Member
from .order import LoopAccess, collapse, loop_accesses, order_loops, tile_axis, vector_axis
from .recorder import KernelRecorder

MAX_RECOMPUTED = 64


@dataclass(slots=True)
class Resolved:
    """A member's programs in the symbols of the group, and the slot where it runs."""

    member: Member
    program: tuple[Instruction, ...]
    epilogue: tuple[Instruction, ...]
    slot: int = 0


def build_kernel(
    group: Group,
    graph: LoweredGraph,
    external: set[str],
    keep_loops: bool = False,
    options: Options | None = None,
) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel of a group, named ``kernel``, and the buffers to call it with. Buffers not in
    ``external`` need no memory unless the kernel itself reads them back. ``keep_loops``: its loops
    are the group's as they are.
    """
    options = options or Options()
    reorders = options.reorder and not keep_loops and may("fusion", "order loops", group.name)
    members = [_resolve(member, group, graph) for member in group.members]
    _assign_slots(members)
    accesses = [access for m in members for access in _accesses(m)]
    ordered, reduced = list(group.ranges), list(group.reduction)
    if reorders:
        ordered = order_loops(ordered, accesses, graph.facts)
    if reorders and not group.is_ordered:
        reduced = order_loops(reduced, accesses, graph.facts)
    if reorders:
        ordered, reduced = _recorded_order(group, ordered, reduced)
    is_scan = any(m.member.node.kind == "scan" for m in members)
    ranges, outer_map = (ordered, {}) if keep_loops else collapse(ordered, accesses, "x")
    reduction, inner_map = (reduced, {}) if keep_loops else collapse(reduced, accesses, "r")
    if group.reduction and not reduction:
        reduction = [Range(symbol("r0"), sympy.Integer(1))]
    recorder = _record(members, {**outer_map, **inner_map}, ranges, reduction, graph, external)
    bodies = _bodies(recorder.slots)
    bodies = _drop_unused(bodies, external)
    kernel, buffers = _finish(group, graph, bodies, ranges, reduction, is_scan)
    if current() is not None and not keep_loops:
        vector, tile = _recorded_axes(group, kernel, is_scan)
        kernel = replace(kernel, vector_axis=vector, tile_axis=tile)
    return kernel if options.vectorise else _without_vector(kernel), buffers


def _recorded_order(
    group: Group, ordered: list[Range], reduced: list[Range]
) -> tuple[list[Range], list[Range]]:
    """The loops in the recorded order; a reduction by position keeps its own."""
    nests = {item.symbol.name: item for item in (*ordered, *reduced)}  # type: ignore[attr-defined]
    own = [[item.symbol.name for item in nest] for nest in (ordered, reduced)]  # type: ignore[attr-defined]

    def is_possible(text: str) -> bool:
        outer, _, inner = (part.split() for part in text.partition(" | "))
        fits = inner == own[1] if group.is_ordered else sorted(inner) == sorted(own[1])
        return fits and sorted(outer) == sorted(own[0])

    preferred = " | ".join(map(" ".join, own))
    outer, _, inner = choose("loops", group.title, preferred, is_possible).partition(" | ")
    return [nests[name] for name in outer.split()], [nests[name] for name in inner.split()]


def _recorded_axes(
    group: Group, kernel: Kernel, is_scan: bool
) -> tuple[sympy.Symbol | None, sympy.Symbol | None]:
    """The recorded axes to vectorise and to tile."""
    inner = () if is_scan else kernel.reduction
    vectors = {nest[-1].symbol.name: nest[-1].symbol for nest in (kernel.ranges, inner) if nest}  # type: ignore[attr-defined]
    tiles = {item.symbol.name: item.symbol for item in kernel.ranges}  # type: ignore[attr-defined]

    def is_possible(text: str) -> bool:
        vector, _, tile = text.partition(" ")
        known = vector in (*vectors, "none") and tile in (*tiles, "none")
        return known and (tile == "none" or (tile != vector and vector in tiles))

    preferred = f"{kernel.vector_axis or 'none'} {kernel.tile_axis or 'none'}"
    vector, _, tile = choose("axes", group.title, preferred, is_possible).partition(" ")
    return vectors.get(vector), tiles.get(tile)


def _resolve(member: Member, group: Group, graph: LoweredGraph) -> Resolved:
    recorder = SimplifyingRecorder(graph.facts, extents_of(group.ranges, group.reduction))
    values: dict[str, Value] = {}
    replay(member.node.program, recorder, member.substitution, values)
    inside = len(recorder.instructions)
    replay(member.node.epilogue, recorder, member.substitution, values)
    return Resolved(
        member, tuple(recorder.instructions[:inside]), tuple(recorder.instructions[inside:])
    )


def _accesses(resolved: Resolved) -> list[LoopAccess]:
    inner = resolved.member.inner
    return loop_accesses(resolved.program, inner) + loop_accesses(resolved.epilogue, False)


def _assign_slots(members: Sequence[Resolved]) -> None:
    """Assigns each member the earliest slot: the result of a reduction in slot ``2k + 1`` is known
    from slot ``2k + 2`` on.
    """
    ready: dict[str, int] = {}
    for item in members:
        needed = [ready[name] for name in item.member.node.read_names if name in ready]
        slot = max(needed, default=0)
        if item.member.inner != bool(slot % 2):
            slot += 1
        item.slot = slot
        ready[item.member.node.buffer] = slot + 1 if item.epilogue else slot


def _record(
    members: Sequence[Resolved], change: dict, ranges: list[Range], reduction: list[Range],
    graph: LoweredGraph,
    external: set[str],
) -> KernelRecorder:  # fmt: skip
    stored = {item.member.node.buffer for item in members}
    recorder = KernelRecorder(
        graph.facts, extents_of(ranges, reduction), {item.symbol for item in reduction}, stored
    )
    for item in members:
        name = item.member.node.buffer
        if (
            item.member.inner
            and not item.epilogue
            and name not in external
            and _is_recomputable(item)
        ):
            recorder.recompute[name] = lambda item=item: _value_of(item, recorder, change)
    by_slot = sorted(members, key=lambda item: item.slot)
    pending: dict[int, list[tuple[Resolved, dict]]] = {}
    done = 0
    last = max((item.slot + bool(item.epilogue) for item in members), default=0)
    for slot in range(last + 1):
        recorder.enter(slot)
        for item, values in pending.pop(slot, []):
            replay(item.epilogue, recorder, change, values)
        while done < len(by_slot) and by_slot[done].slot == slot:
            item = by_slot[done]
            done += 1
            values = replay(item.program, recorder, change)
            if item.epilogue:
                pending.setdefault(slot + 1, []).append((item, values))
    return recorder


def _is_recomputable(item: Resolved) -> bool:
    weight = sum(
        4 if step.op in COSTLY or step.op in ("uniform", "uniform16") else 1
        for step in item.program
    )
    if item.member.node.kind != "pointwise":
        return False
    return decide("recomputed values", item.member.node.buffer, weight <= MAX_RECOMPUTED)


def _value_of(item: Resolved, recorder: KernelRecorder, change: dict) -> Value:
    *steps, last = item.program
    values = replay(steps, recorder, change)
    stored = last.args[2]
    assert isinstance(stored, Value)
    return values[stored.name]


def _bodies(slots: dict[int, list[Instruction]]) -> list[Body]:
    return [Body(bool(slot % 2), tuple(steps)) for slot, steps in sorted(slots.items())]


def _drop_unused(bodies: Sequence[Body], external: set[str]) -> list[Body]:
    """The bodies without unread stores and unused pure operations; adjacent outer bodies are
    merged.
    """
    loaded = accessed(steps_of(bodies), "load")
    while True:
        blocks = [body.instructions for body in bodies]
        live = with_blocks(bodies, remove_dead(blocks, external | loaded))
        still = accessed(steps_of(live), "load")
        if still == loaded:
            return _joined(live)
        loaded = still


def _joined(bodies: Sequence[Body]) -> list[Body]:
    result: list[Body] = []
    for body in bodies:
        if result and not body.inner and not result[-1].inner:
            result[-1] = Body(False, result[-1].instructions + body.instructions)
        else:
            result.append(body)
    return result


class _Names:
    """Canonical names: buffers by role and first appearance, values by position."""

    def __init__(self, bodies: Sequence[Body], scattered: set[str], product: str) -> None:
        self.buffers: dict[str, str] = {}
        self.roles: dict[str, str] = {}
        self.values: dict[str, str] = {}
        steps = steps_of(bodies)
        stores = accessed(steps, "store")
        counts = {"in": 0, "out": 0, "inout": 0}
        for step in steps:
            if not step.is_access or step.args[0] in self.buffers:
                continue
            name = str(step.args[0])
            role = "inout" if name in scattered else "out" if name in stores else "in"
            self.roles[name] = role
            self.buffers[name] = f"{role}{counts[role]}" if name != product else "product"
            counts[role] += name != product
        number = {"v": 0, "i": 0}
        for step in steps:
            if step.result is not None:
                prefix = "i" if step.op == "indirect" else "v"
                self.values[step.result] = f"{prefix}{number[prefix]}"
                number[prefix] += 1
        self.indirect = {
            symbol(old): symbol(new) for old, new in self.values.items() if new.startswith("i")
        }

    def renamed(self, step: Instruction) -> Instruction:
        """The instruction with canonical names."""
        args = tuple(
            Value(self.values[arg.name])
            if isinstance(arg, Value)
            else substitute(arg, self.indirect)
            if isinstance(arg, sympy.Expr)
            else self.buffers[arg]
            if position == 0 and isinstance(arg, str) and step.is_access
            else arg
            for position, arg in enumerate(step.args)
        )
        result = self.values[step.result] if step.result is not None else None
        return Instruction(result, step.op, args, step.dtype)


def _finish(
    group: Group,
    graph: LoweredGraph,
    bodies: list[Body],
    ranges: list[Range],
    reduction: list[Range],
    is_scan: bool,
) -> tuple[Kernel, tuple[str, ...]]:
    scattered = {member.node.buffer for member in group.members if member.node.kind == "scatter"}
    names = _Names(bodies, scattered, group.product)
    accesses = [
        access for body in bodies for access in loop_accesses(body.instructions, body.inner)
    ]
    if not any(body.inner for body in bodies):
        reduction = []
    buffers = tuple(
        _declare(graph.buffers[old], new, names.roles[old]) for old, new in names.buffers.items()
    )
    final = map_steps(names.renamed, bodies)
    sizes = sizes_of(final, ranges, reduction, buffers)
    hints = tuple((size, graph.facts.hints[size]) for size in sizes if size in graph.facts.hints)
    origins = tuple(
        dict.fromkeys(origin for member in group.members for origin in member.node.origins)
    )
    device = graph.buffers[group.members[0].node.buffer].device
    vector = vector_axis(ranges, reduction, accesses, is_scan)
    kernel = Kernel(
        name="kernel",
        device=device.type,
        buffers=buffers,
        sizes=sizes,
        ranges=tuple(ranges),
        reduction=tuple(reduction),
        bodies=final,
        vector_axis=vector,
        hints=hints,
        origins=origins,
        tile_axis=tile_axis(ranges, vector, accesses),
    )
    return kernel, tuple(names.buffers)


def _without_vector(kernel: Kernel) -> Kernel:
    return replace(kernel, vector_axis=None, tile_axis=None)


def _declare(buffer: Buffer, name: str, role: str) -> KernelBuffer:
    return KernelBuffer(name, buffer.dtype, role, buffer.numel)


def sizes_of(
    bodies: Sequence[Body],
    ranges: Sequence[Range],
    reduction: Sequence[Range],
    buffers: Sequence[KernelBuffer],
) -> tuple[sympy.Symbol, ...]:
    """The size symbols that a kernel reads."""
    exprs = [item.extent for item in (*ranges, *reduction)] + [buffer.numel for buffer in buffers]
    exprs += [expr for step in steps_of(bodies) for expr in step.expressions]
    loops = {item.symbol for item in (*ranges, *reduction)}
    indirect = {step.result for step in steps_of(bodies) if step.op == "indirect"}
    found = {s for expr in exprs for s in expr.free_symbols} - loops
    sizes = [s for s in found if s.name not in indirect]  # type: ignore[attr-defined]
    return tuple(
        sorted(
            sizes,
            key=lambda s: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", s.name)],  # type: ignore[attr-defined]
        )
    )
