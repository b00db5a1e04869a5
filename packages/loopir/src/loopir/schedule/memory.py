"""Lifetimes: when buffers are allocated and freed, and which reuse the memory of dead ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy
from symshapes.decisions import may
from torch._ops import OpOverload

from loopir.ir.kernel import Kernel
from loopir.ir.node import ExternNode, LoweredGraph, views_in
from loopir.ir.program import Allocate, ExternCall, Free, Launch, MakeView, Step
from loopir.ir.simplify import product
from loopir.ir.template import Template, kernels_of

LIBRARIES = ("aten", "mkldnn", "mkl")


def uses_of(step: Step) -> set[str]:
    """Buffers and views that a step touches."""
    if isinstance(step, Launch):
        return set(step.buffers)
    if isinstance(step, MakeView):
        return {step.view.buffer, step.name}
    if isinstance(step, ExternCall):
        return {*step.node.read_names, *step.node.result_names}
    return set()


def plan_memory(
    steps: Sequence[Step],
    graph: LoweredGraph,
    kernels: Sequence[Kernel | Template],
    reuse: bool,
    updates: Mapping[str, str],
) -> list[Step]:
    """The steps, with allocations before first writes and frees after last uses.

    A result reuses the memory of an operand whose last use is this launch if each point reads that
    operand only where it stores; otherwise that of any dead buffer of its size. On devices other
    than CPUs only the memory of donated inputs is reused out of place: allocating costs nothing
    there, and a larger buffer may need the memory. A result that is written back to an input is
    stored there directly if that input has been read by then; ``updates`` has the inputs in which
    other results are.
    """
    given = {*graph.input_buffers, *graph.constants}
    given.update(*(step.node.result_names for step in steps if isinstance(step, ExternCall)))
    dying = _last_uses(steps, graph)
    shared = _shared_memory(steps)
    pool: dict[object, list[str]] = {}
    placed: list[Step] = []
    owned = graph.donated | _fresh_results(steps)
    taken: set[str] = set()
    targets = _places_to_write(steps, graph, kernels) if reuse else {}
    for position, step in enumerate(steps):
        dead = [name for name in dying.get(position, ()) if name in owned and name not in shared]
        for name in step.buffers if isinstance(step, Launch) else ():
            if name in given or name in owned:
                continue
            assert isinstance(step, Launch)
            owned.add(name)
            target = updates.get(name) or _place_to_write(targets, kernels, step, position, name)
            if target is not None:
                placed.append(Allocate(name, target, True))
                continue
            source, in_place = None, False
            if reuse and may("fusion", "reuse memory", name):
                free = [d for d in dead if d not in taken]
                source, in_place = _choose_memory(graph, step, kernels, name, free, pool)
            placed.append(Allocate(name, source, in_place))
            if in_place and source is not None:
                taken.add(source)
        if (
            isinstance(step, ExternCall)
            and (consumed := _consumed(step.node))
            and consumed <= {*dead}
        ):
            step = ExternCall(replace(step.node, op=step.node.op.overloadpacket.consuming))  # type: ignore[union-attr]
            taken |= consumed
        placed.append(step)
        for name in dying.get(position, ()):
            if (
                name in dead
                and name not in taken
                and (name in graph.donated or graph.buffers[name].device.type == "cpu")
            ):
                pool.setdefault(_memory_kind(graph, name), []).append(name)
            placed.append(Free(name))
    return _without_moved(placed)


def _choose_memory(
    graph: LoweredGraph,
    step: Launch,
    kernels: Sequence[Kernel | Template],
    name: str,
    dead: Sequence[str],
    pool: dict[object, list[str]],
) -> tuple[str | None, bool]:
    """The buffer whose memory ``name`` reuses, if any, and whether the kernel works in place."""
    kind, kernel = _memory_kind(graph, name), kernels[step.kernel]
    for operand in dead:
        if _memory_kind(graph, operand) == kind and _is_in_place(kernel, step, operand, name):
            return operand, True
    waiting = pool.get(kind)
    return (waiting.pop() if waiting else None), False


def _places_to_write(
    steps: Sequence[Step], graph: LoweredGraph, kernels: Sequence[Kernel | Template]
) -> dict[str, tuple[str, int]]:
    """The inputs in which results can be stored directly, and the step that reads each last. No
    step after the first such store may raise, because a failed call is repeated with the original
    inputs.
    """
    if any("indirect" in part.ops for kernel in kernels for part in kernels_of(kernel)):
        return {}
    last = {target: -1 for target in graph.written.values()}
    owner = {step.name: step.view.buffer for step in steps if isinstance(step, MakeView)}
    start, first = 0, dict[str, int]()
    for position, step in enumerate(steps):
        start = position + 1 if isinstance(step, ExternCall) else start
        for used in uses_of(step):
            name = owner.get(used, used)
            first.setdefault(name, position)
            if name in last:
                last[name] = position
    return {
        name: (target, last[target])
        for name, target in graph.written.items()
        if first.get(name, -1) >= start
    }


def _place_to_write(
    targets: Mapping[str, tuple[str, int]],
    kernels: Sequence[Kernel | Template],
    step: Launch,
    position: int,
    name: str,
) -> str | None:
    """The input in which a result is stored directly: one that has been read by then."""
    target, last = targets.get(name, ("", position + 1))
    is_free = last < position or (
        last == position and _is_in_place(kernels[step.kernel], step, target, name)
    )
    return target if is_free and may("fusion", "write in place", name) else None


def _consumed(node: ExternNode) -> set[str]:
    """The buffers whose memory the ``consuming`` overload of an operator would overwrite; none if
    it has no such overload, or reads one of them twice.
    """
    consuming = getattr(getattr(node.op, "overloadpacket", None), "consuming", None)
    if consuming is None:
        return set()
    names = [argument.name for argument in consuming._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    written = [a.name for a in consuming._schema.arguments if a.alias_info is not None]
    read = [view.buffer for view in views_in(list(given.values()))]
    found = [view.buffer for name in written for view in views_in(given.get(name))]
    return {*found} if all(read.count(name) == 1 for name in found) else set()


def _fresh_results(steps: Sequence[Step]) -> set[str]:
    """Results of torch's own operators in new memory; a user's operator may keep a reference to
    what it returns.
    """
    calls = [step.node for step in steps if isinstance(step, ExternCall) and not step.node.aliases]
    own = [
        node for node in calls if isinstance(node.op, OpOverload) and node.op.namespace in LIBRARIES
    ]
    return {name for node in own for name in node.result_names}


def _is_in_place(kernel: Kernel | Template, launch: Launch, source: str, target: str) -> bool:
    """Whether each point loads ``source`` only where it stores ``target``, no load follows a store,
    and no body after the storing one uses loaded values (clause C4.8).
    """
    buffers = launch.buffers
    starts = {start for name, start in launch.operands if name in (source, target)}
    if source not in buffers or len(starts) != 1:
        return False
    if isinstance(kernel, Template):
        inside = [buffers[place] for place in kernel.epilogue.arguments]
        before = {*buffers} - {*inside} | {
            buffers[place] for _, stage in kernel.prologues for place in stage.arguments
        }
        operands = {view.buffer for view in kernel.views}
        before |= {
            name for name, own in zip(buffers, kernel.buffers, strict=True) if own.name in operands
        }
        if source in before:
            return False
        inside.insert(
            [b.name for b in kernel.epilogue.kernel.buffers].index(kernel.epilogue.buffer), ""
        )
        kernel, buffers = kernel.epilogue.kernel, inside
    names = {
        declared.name: buffer for declared, buffer in zip(kernel.buffers, buffers, strict=True)
    }
    indices, stored = set(), False
    for step in kernel.steps:
        name = names.get(str(step.args[0])) if step.is_access else None
        if name not in (source, target):
            continue
        if (step.op == "store") != (name == target) or (
            step.op == "load" and (stored or step.args[2] is not None)
        ):
            return False
        if step.op == "store" and step.args[3] is not None:
            return False
        stored |= step.op == "store"
        indices.add(step.args[1])
    return len(indices) == 1 and not _is_used_later(kernel, names, source, target)


def _is_used_later(kernel: Kernel, names: dict[str, str], source: str, target: str) -> bool:
    """Whether a body after one that stores ``target`` uses a value computed from ``source``. A
    generator that launches bodies separately loads ``source`` again for it. Results of reductions
    are stored, not recomputed.
    """
    if len(kernel.bodies) == 1:
        return False
    computed: set[str] = set()
    stored = False
    for body in kernel.bodies:
        for step in body.instructions:
            is_load = step.op == "load" and names.get(str(step.args[0])) == source
            uses = not computed.isdisjoint(step.reads)
            if uses and stored:
                return True
            if (is_load or uses) and step.op not in ("reduce", "scan"):
                computed.add(str(step.result))
        stored = stored or any(
            step.op == "store" and names.get(str(step.args[0])) == target
            for step in body.instructions
        )
    return False


def _last_uses(steps: Sequence[Step], graph: LoweredGraph) -> dict[int, list[str]]:
    """The buffers and views that are dead after each step; never inputs, constants and outputs. A
    buffer lives as long as its views.
    """
    kept = {*graph.output_buffers, *(graph.input_buffers - graph.donated), *graph.constants}
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
    """Buffers whose memory an extern call may return; views share memory with their buffer."""
    owner = {step.name: step.view.buffer for step in steps if isinstance(step, MakeView)}
    names = {
        name
        for step in steps
        if isinstance(step, ExternCall) and step.node.aliases
        for name in uses_of(step)
    }
    return {owner.get(name, name) for name in names}


def _memory_kind(graph: LoweredGraph, name: str) -> tuple[object, ...]:
    buffer = graph.buffers[name]
    return buffer.dtype, buffer.device, sympy.expand(product(buffer.shape)), buffer.numel


def _without_moved(steps: Sequence[Step]) -> list[Step]:
    """Drops the frees of memory that a later buffer reuses."""
    moved = {
        step.reuses
        for step in steps
        if isinstance(step, Allocate) and step.reuses and not step.in_place
    }
    return [step for step in steps if not (isinstance(step, Free) and step.buffer in moved)]
