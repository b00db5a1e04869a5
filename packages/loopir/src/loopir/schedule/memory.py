"""Lifetimes: when buffers are allocated and freed, and which take over the memory of dead ones."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from loopir.node import LoweredGraph, View, views_in
from loopir.program import Allocate, ExternCall, Free, Launch, MakeView, Step
from loopir.simplify import product


def uses_of(step: Step) -> set[str]:
    """Buffers and views that a step touches."""
    if isinstance(step, Launch):
        return set(step.buffers)
    if isinstance(step, MakeView):
        return {step.view.buffer, step.name}
    if isinstance(step, ExternCall):
        arguments = (step.node.args, [value for _, value in step.node.kwargs])
        return {view.buffer for view in views_in(arguments)} | {name for name in step.node.results if name}
    return set()


def plan_memory(steps: Sequence[Step], graph: LoweredGraph, reuse: bool) -> list[Step]:
    """The steps with allocations before first writes and frees after last uses."""
    given = {name for name in graph.inputs if isinstance(name, str)} | set(graph.constants)
    given |= {name for step in steps if isinstance(step, ExternCall) for name in step.node.results if name}
    dying = _last_uses(steps, graph)
    shared = _shared_memory(steps)
    pool: dict[object, list[str]] = {}
    placed: list[Step] = []
    allocated: set[str] = set()
    for position, step in enumerate(steps):
        for name in step.buffers if isinstance(step, Launch) else ():
            if name not in given and name not in allocated:
                allocated.add(name)
                waiting = pool.get(_memory_kind(graph, name)) if reuse else None
                placed.append(Allocate(name, waiting.pop() if waiting else None))
        placed.append(step)
        for name in dying.get(position, ()):
            if name in allocated and name not in shared:
                pool.setdefault(_memory_kind(graph, name), []).append(name)
            placed.append(Free(name))
    return _without_moved(placed)


def _last_uses(steps: Sequence[Step], graph: LoweredGraph) -> dict[int, list[str]]:
    """The buffers and views that are dead after each step; inputs, constants and outputs never are. A buffer lives as long as
    the views of it."""
    kept = {view.buffer for view in graph.outputs if isinstance(view, View)}
    kept |= {name for name in graph.inputs if isinstance(name, str)} | set(graph.constants)
    owner = {step.name: step.view.buffer for step in steps if isinstance(step, MakeView)}
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        for used in sorted(uses_of(step)):
            for name in dict.fromkeys((used, owner.get(used, used))):
                if name not in kept:
                    last[name] = position
    dying: dict[int, list[str]] = {}
    for name, position in last.items():
        dying.setdefault(position, []).append(name)
    return dying


def _shared_memory(steps: Sequence[Step]) -> set[str]:
    """Buffers whose memory an extern result may be; views share with their buffer."""
    owner = {step.name: step.view.buffer for step in steps if isinstance(step, MakeView)}
    names = {name for step in steps if isinstance(step, ExternCall) and step.node.aliases for name in uses_of(step)}
    return {owner.get(name, name) for name in names}


def _memory_kind(graph: LoweredGraph, name: str) -> tuple[object, ...]:
    buffer = graph.buffers[name]
    return buffer.dtype, buffer.device, sympy.expand(product(buffer.shape)), buffer.numel


def _without_moved(steps: Sequence[Step]) -> list[Step]:
    """Memory that a later buffer takes over is not freed in between."""
    moved = {step.reuses for step in steps if isinstance(step, Allocate) and step.reuses}
    return [step for step in steps if not (isinstance(step, Free) and step.buffer in moved)]
