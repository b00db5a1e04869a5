"""Joins small launches over equal loops: a launch costs more than their work.

Without blocks, fusion joins what is small and independent in a whole graph, such as the zeros to
which sums are added; it sees one block at a time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from symshapes.choices import decide
from symshapes.decisions import may

from loopir.ir.kernel import Body, Instruction, Kernel, Value
from loopir.ir.program import Launch, Step
from loopir.ir.simplify import Facts, points_of
from loopir.ir.template import Template

from .fusion import MAX_BUFFERS, SMALL_BUNDLE
from .memory import uses_of

Found: TypeAlias = tuple[int, Launch, Kernel]


def join_small(
    steps: Sequence[Step],
    kernels: Sequence[Kernel | Template],
    given: Collection[str],
    facts: Facts,
    add: Callable[[Kernel], int | None],
) -> list[Step]:
    """The steps with small launches over equal loops as one launch in the place of the first. They
    read nothing but inputs and constants of the program (``given``), so that they may come earlier.

    ``add``: adds a kernel and returns its number; None if the code generator does not take it.
    """
    first: dict[str, int] = {}
    for position, step in enumerate(steps):
        for name in uses_of(step):
            first.setdefault(name, position)
    found: defaultdict[object, list[Found]] = defaultdict(list)
    for position, step in enumerate(steps):
        if not isinstance(step, Launch):
            continue
        kernel = kernels[step.kernel]
        if isinstance(kernel, Kernel) and _may_rise(step, position, kernel, given, first):
            loops = kernel.device, kernel.ranges, kernel.vector_axis, kernel.tile_axis
            if _can_join(kernel) and decide(
                "small launches", step.buffers[-1], _is_small(kernel, facts)
            ):
                found[*loops, kernel.sizes].append((position, step, kernel))
    changed: dict[int, Step | None] = {}
    for launches in found.values():
        for part in _parts(launches):
            if not may("fusion", "join small launches", kernels[part[0][1].kernel].name):
                continue
            number = add(_joined([kernel for *_, kernel in part]))
            if number is not None:
                one = _one(number, [launch for _, launch, _ in part])
                changed |= {position: None for position, *_ in part} | {part[0][0]: one}
    placed = (changed.get(position, step) for position, step in enumerate(steps))
    return [step for step in placed if step is not None]


def _can_join(kernel: Kernel) -> bool:
    return [body.inner for body in kernel.bodies] == [False] and "indirect" not in kernel.ops


def _is_small(kernel: Kernel, facts: Facts) -> bool:
    return facts.hint(points_of(kernel.ranges)) <= SMALL_BUNDLE


def _may_rise(
    launch: Launch, position: int, kernel: Kernel, given: Collection[str], first: Mapping[str, int]
) -> bool:
    """Whether a launch reads only what is given, and makes what it writes."""
    return all(
        name in given if own.role == "in" else own.role == "out" and first[name] == position
        for name, own in zip(launch.buffers, kernel.buffers, strict=True)
    )


def _parts(launches: Sequence[Found]) -> Iterator[list[Found]]:
    """Parts of at least two launches, with at most MAX_BUFFERS buffers if there are more."""
    part: list[Found] = []
    count = 0
    for each in launches:
        count += len(each[1].buffers)
        if count > MAX_BUFFERS:
            if len(part) > 1:
                yield part
            part, count = [], len(each[1].buffers)
        part.append(each)
    if len(part) > 1:
        yield part


def _joined(kernels: Sequence[Kernel]) -> Kernel:
    """A kernel with the bodies of kernels over the same loops, each on buffers of its own."""
    buffers, steps, counts = [], [], Counter[str]()
    for kernel in kernels:
        names: dict[str, str] = {}
        for own in kernel.buffers:
            names[own.name] = f"{own.role}{counts[own.role]}"
            counts[own.role] += 1
            buffers.append(replace(own, name=names[own.name]))
        for step in kernel.bodies[0].instructions:
            if step.result is not None:
                names[step.result] = f"v{counts['v']}"
                counts["v"] += 1
            steps.append(_renamed(step, names))
    origins = tuple(dict.fromkeys(origin for kernel in kernels for origin in kernel.origins))
    return replace(
        kernels[0], buffers=tuple(buffers), bodies=(Body(False, tuple(steps)),), origins=origins
    )


def _renamed(step: Instruction, names: dict[str, str]) -> Instruction:
    args = [Value(names[arg.name]) if isinstance(arg, Value) else arg for arg in step.args]
    if step.is_access:
        args[0] = names[str(args[0])]
    result = None if step.result is None else names[step.result]
    return replace(step, result=result, args=tuple(args))


def _one(kernel: int, launches: Sequence[Launch]) -> Launch:
    operands = [each for launch in launches for each in launch.operands]
    starts = tuple(start for _, start in operands)
    return Launch(kernel, tuple(name for name, _ in operands), starts if any(starts) else ())
