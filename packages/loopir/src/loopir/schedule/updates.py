"""Inputs of which a program overwrites some elements, such as a cache of keys and values: the
elements are stored in the input itself, and it is not copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symshapes.decisions import may

from loopir.ir.kernel import Kernel
from loopir.ir.node import LoweredGraph
from loopir.ir.program import ExternCall, Launch, Step
from loopir.ir.template import Template

Kernels = Sequence[Kernel | Template]


def updated_inputs(
    steps: Sequence[Step], graph: LoweredGraph, kernels: Kernels
) -> tuple[list[Step], dict[str, str]]:
    """The steps without the copies of inputs that can be updated in place, and the input in whose
    memory each result is.

    Nothing else may read the input, so that no stored value depends on what was there before: a
    call that fails half way is repeated, and stores the same values again.
    """
    targets: dict[str, str] = {}
    copies: dict[int, tuple[str, str]] = {}
    for position, step in enumerate(steps):
        pair = _copied(step, kernels)
        if pair is not None and graph.written.get(pair[1]) == pair[0]:
            copies[position] = pair
    uses = _uses(steps, {name for pair in copies.values() for name in pair})
    for position, (source, name) in copies.items():
        later = [steps[place] for place in uses[name] if place != position]
        if (
            uses[source] == [position]
            and min(uses[name]) == position
            and later
            and all(_overwrites(step, name, kernels) for step in later)
            and may("fusion", "update in place", name)
        ):
            targets[name] = source
    kept = [
        step for place, step in enumerate(steps) if copies.get(place, ("", ""))[1] not in targets
    ]
    return kept, targets


def _uses(steps: Sequence[Step], names: set[str]) -> Mapping[str, list[int]]:
    """The positions of the launches and calls that use each of the buffers."""
    found: dict[str, list[int]] = {name: [] for name in names}
    for position, step in enumerate(steps):
        used = {*step.buffers} if isinstance(step, Launch) else set()
        if isinstance(step, ExternCall):
            used = {*step.node.read_names, *step.node.result_names}
        for name in used & names:
            found[name].append(position)
    return found


def _copied(step: Step, kernels: Kernels) -> tuple[str, str] | None:
    """The source and the target of a launch that does nothing but copy a buffer."""
    kernel = kernels[step.kernel] if isinstance(step, Launch) else None
    if not isinstance(step, Launch) or not isinstance(kernel, Kernel) or len(kernel.steps) != 2:
        return None
    load, store = kernel.steps
    if (load.op, store.op) != ("load", "store") or len({start for _, start in step.operands}) != 1:
        return None
    is_whole = load.args[2] is None and store.args[3] is None and load.args[1] == store.args[1]
    if not is_whole or str(store.args[2]) != str(load.result):
        return None
    names = dict(zip((buffer.name for buffer in kernel.buffers), step.buffers, strict=True))
    return names[str(load.args[0])], names[str(store.args[0])]


def _overwrites(step: Step, name: str, kernels: Kernels) -> bool:
    """Whether a step only reads the buffer, or only replaces elements of it."""
    if not isinstance(step, Launch):
        return not isinstance(step, ExternCall) or name not in step.node.result_names
    kernel = kernels[step.kernel]
    pairs = zip(kernel.buffers, step.buffers, strict=True)
    declared = {buffer.name: buffer.role for buffer, given in pairs if given == name}
    if {*declared.values()} == {"in"}:
        return True
    return isinstance(kernel, Kernel) and all(
        each.op == "store" and each.args[3] is None
        for each in kernel.steps
        if each.is_access and each.args[0] in declared
    )
