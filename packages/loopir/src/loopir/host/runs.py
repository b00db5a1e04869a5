"""Runs: consecutive launches become one call, and the buffers that only they use are allocated in
one slab.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import sympy
import torch

from loopir.backend import Place, Run, RunCall
from loopir.ir.expr import example_value
from loopir.ir.node import Buffer
from loopir.ir.program import Allocate, ExternCall, Free, Launch, Program, Step
from loopir.ir.simplify import ZERO, ceil_div, product

from .independent import WHOLE_SLAB, Accesses, independent_before

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class RunStep:
    """Calls run ``number`` with these buffers and, if ``slab`` bytes are needed, a slab as the last
    tensor.
    """

    number: int
    tensors: tuple[str, ...]
    slab: sympy.Expr


@dataclass(slots=True)
class Slot:
    """Memory that buffers use one after the other, from launch ``first`` to launch ``last``.

    Attributes:
        names: the names of those buffers.
        source: the buffer, allocated before the run, whose memory is reused, if any.
        result: the buffer that outlives the run, if any.
        offset: the slot's offset in the slab.
    """

    names: list[str]
    source: str | None
    first: int
    last: int
    result: str | None = None
    offset: sympy.Expr = ZERO


@dataclass(slots=True)
class Linked:
    """A program's steps with launches replaced by calls of ``runs``."""

    steps: list[Step | RunStep] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)


def cut_runs(program: Program, devices: Collection[str]) -> Linked:
    """Cuts the launches on ``devices`` (types) into runs, each on one device. Equal runs are
    shared.
    """
    linked = Linked()
    numbers: dict[Run, int] = {}
    segment: list[Step] = []
    on_device: torch.device | None = None

    def flush() -> None:
        _close(program, segment, linked, numbers)
        segment.clear()

    for step in program.steps:
        device = launch_device(program, step) if isinstance(step, Launch) else on_device
        if on_device is not None and device != on_device:
            flush()
        if isinstance(step, Allocate | Free) or (
            isinstance(step, Launch) and device is not None and device.type in devices
        ):
            segment.append(step)
            on_device = device
        else:
            flush()
            linked.steps.append(step)
    flush()
    linked.runs = list(numbers)
    return linked


def launch_device(program: Program, launch: Launch) -> torch.device:
    """The device of a launch's buffers."""
    wanted = program.kernels[launch.kernel].device
    devices = (program.buffers[name].device for name in launch.buffers)
    return next((device for device in devices if device.type == wanted), torch.device(wanted))


def _close(
    program: Program, segment: Sequence[Step], linked: Linked, numbers: dict[Run, int]
) -> None:
    launches = [step for step in segment if isinstance(step, Launch)]
    if not launches:
        linked.steps += segment
        return
    slots = _slots(segment)
    inner = [slot for slot in slots if slot.source is None and slot.result is None]
    size = _place(inner, program)
    owner = {name: slot for slot in slots for name in slot.names}
    tensors: dict[str, int] = {}
    calls = []
    touched = [Accesses() for _ in launches]
    for launch, accesses in zip(launches, touched):
        places = []
        kernel = program.kernels[launch.kernel]
        for (name, start), own in zip(launch.operands, kernel.buffers, strict=True):
            root, offset = _root(name, owner), start * program.buffers[name].dtype.itemsize
            part = WHOLE_SLAB if root is not None else _part(owner[name], program)
            accesses.add(root, part, own.role != "in")
            if root is None:
                places.append(Place(-1, owner[name].offset + offset))
            else:
                places.append(Place(tensors.setdefault(root, len(tensors)), offset))
        calls.append(RunCall(launch.kernel, tuple(places), kernel.sizes))
    count = len(tensors) + (size != 0)
    calls = [
        replace(
            call,
            places=tuple(Place(p.parameter % count, p.offset) for p in call.places),
            beside=beside,
        )
        for call, beside in zip(calls, independent_before(touched), strict=True)
    ]
    run = Run(count, _symbols(calls, size), tuple(calls), launch_device(program, launches[0]), size)
    used = {name for launch in launches for name in launch.buffers}
    inside = {name for slot in slots for name in (*slot.names, slot.source)}
    frees = [step for step in segment if isinstance(step, Free) and step.buffer not in inside]
    linked.steps += [step for step in frees if step.buffer not in used]
    linked.steps += [
        Allocate(slot.result) for slot in slots if slot.source is None and slot.result is not None
    ]
    linked.steps.append(RunStep(numbers.setdefault(run, len(numbers)), tuple(tensors), size))
    linked.steps += [step for step in frees if step.buffer in used]
    for slot in slots:
        if slot.source is not None:
            linked.steps.append(
                Free(slot.source) if slot.result is None else Allocate(slot.result, slot.source)
            )


def _slots(segment: Sequence[Step]) -> list[Slot]:
    """The memory allocated or reused in a segment, with the launches between which it is used."""
    slots: dict[str, Slot] = {}
    found: list[Slot] = []
    position = 0
    for step in segment:
        if isinstance(step, Launch):
            for name in step.buffers:
                if name in slots:
                    slots[name].last = position
            position += 1
        elif isinstance(step, Allocate):
            slot = slots.get(step.reuses) if step.reuses is not None else None
            if slot is None:
                slot = Slot([], step.reuses, position, position)
                found.append(slot)
            slot.names.append(step.buffer)
            slot.result = step.buffer
            slots[step.buffer] = slot
        elif (
            isinstance(step, Free)
            and step.buffer in slots
            and slots[step.buffer].result == step.buffer
        ):
            slots[step.buffer].result = None
    return found


def _root(name: str, owner: dict[str, Slot]) -> str | None:
    """The tensor whose memory a buffer uses; None for memory in the slab."""
    slot = owner.get(name)
    if slot is None:
        return name
    return slot.source if slot.source is not None else slot.result


def _part(slot: Slot, program: Program) -> tuple[float, float]:
    """The bytes of the slab that a slot may use."""
    size = size_in_bytes(program.buffers[slot.names[0]])
    if not (size.is_Integer and slot.offset.is_Integer):
        return WHOLE_SLAB
    return int(slot.offset), int(slot.offset) + int(size)


def size_in_bytes(buffer: Buffer) -> sympy.Expr:
    """The bytes of a buffer, rounded up to the alignment."""
    count = product((buffer.numel, sympy.Integer(buffer.dtype.itemsize)))
    return ceil_div(count, ALIGNMENT) * ALIGNMENT


def _place(slots: Sequence[Slot], program: Program) -> sympy.Expr:
    """Assigns each slot an offset such that slots in use at the same time don't overlap; returns
    the bytes needed.

    Slots of static size are assigned largest first, each to the lowest free offset. Slots of
    symbolic size come after each other; those of equal size share memory where possible.
    """
    sizes = {id(slot): size_in_bytes(program.buffers[slot.names[0]]) for slot in slots}
    fixed = [slot for slot in slots if sizes[id(slot)].is_Integer]
    top = ALIGNMENT if fixed else 0
    placed: list[Slot] = []
    for slot in sorted(fixed, key=lambda s: -int(sizes[id(s)])):
        need, start = int(sizes[id(slot)]), 0
        for other in sorted((p for p in placed if _meet(p, slot)), key=lambda p: int(p.offset)):
            if start + need <= int(other.offset):
                break
            start = max(start, int(other.offset) + int(sizes[id(other)]))
        slot.offset = sympy.Integer(start)
        placed.append(slot)
        top = max(top, start + need)
    end: sympy.Expr = sympy.Integer(top)
    shared: list[Slot] = []
    for slot in slots:
        if slot in fixed:
            continue
        again = next(
            (s for s in shared if sizes[id(s)] == sizes[id(slot)] and not _meet(s, slot)), None
        )
        slot.offset = end if again is None else again.offset
        if again is None:
            end = end + sizes[id(slot)]
        else:
            shared.remove(again)
        shared.append(slot)
    return end


def _meet(a: Slot, b: Slot) -> bool:
    return a.first <= b.last and b.first <= a.last


def _symbols(calls: Sequence[RunCall], slab: sympy.Expr) -> tuple[sympy.Symbol, ...]:
    exprs = [
        slab,
        *(e for call in calls for e in (*call.sizes, *(place.offset for place in call.places))),
    ]
    return tuple(sorted({s for e in exprs for s in e.free_symbols}, key=lambda s: s.name))  # type: ignore[attr-defined, misc]


def peak_bytes(program: Program, linked: Linked) -> int:
    """The peak memory of a call beyond its inputs and constants, at the example sizes, including
    outputs. Memory of inputs that it frees is available for reuse.
    """

    def value(expr: sympy.Expr) -> int:
        return example_value(expr, program.hints, 1)

    sizes = {name: value(size_in_bytes(buffer)) for name, buffer in program.buffers.items()}
    held = {name: sizes[name] for name in program.freed_inputs}
    peak = given = sum(held.values())
    for step in linked.steps:
        temporary = 0
        if isinstance(step, Allocate):
            held[step.buffer] = (
                sizes[step.buffer] if step.reuses is None else held.pop(step.reuses, 0)
            )
        elif isinstance(step, RunStep):
            temporary = value(step.slab)
        elif isinstance(step, ExternCall):
            held |= {n: 0 if step.node.aliases else sizes[n] for n in step.node.result_names}
        peak = max(peak, sum(held.values()) + temporary)
        if isinstance(step, Free):
            held.pop(step.buffer, None)
    return peak - given
