"""Several small kernels as one launch: programs of each are some of the launch's programs. A launch
takes longer than what a small kernel does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy
from loopir import Kernel, KernelSource, Run, RunCall, may

from inductor_triton.kernels.codegen import assemble
from inductor_triton.kernels.library import DECORATOR
from inductor_triton.spec import ERRORS, PROGRAM, LaunchSpec, launch_spec, sequence_of

from .grid import program_counter

MOST_BYTES = 16 << 20
"""Bytes that a kernel moves, beyond which the cost of its launch hardly counts."""
MOST_KERNELS = 8
MOST_TENSORS = 64
FEW_PROGRAMS = 256
"""Programs that a device runs at once with any number of warps."""
Group = tuple[int, ...]


def share_launches(
    sources: Sequence[KernelSource], runs: Sequence[Run]
) -> tuple[list[KernelSource], list[Run]]:
    """The sources and runs with small independent kernels that follow each other as one source.
    Sources that nothing launches are left out.
    """
    numbers: dict[Group, int] = {}
    made_runs = [replace(run, calls=_grouped(run.calls, sources, numbers)) for run in runs]
    made = [
        sources[group[0]] if len(group) == 1 else shared([sources[number] for number in group])
        for group in numbers
    ]
    return made, made_runs


def _grouped(
    calls: Sequence[RunCall], sources: Sequence[KernelSource], numbers: dict[Group, int]
) -> tuple[RunCall, ...]:
    groups: list[list[RunCall]] = []
    for call in calls:
        if groups and _fits(call, groups[-1], sources):
            groups[-1].append(call)
        else:
            groups.append([call])
    found = []
    for group in groups:
        key = tuple(call.source for call in group)
        number = numbers.setdefault(key, len(numbers))
        places = tuple(place for call in group for place in call.places)
        found.append(replace(group[0], source=number, places=places))
    return tuple(found)


def _fits(call: RunCall, group: Sequence[RunCall], sources: Sequence[KernelSource]) -> bool:
    """Whether a call is small and independent of a group's calls, which are small, too."""
    together = [sources[each.source] for each in (*group, call)]
    if (
        call.beside < len(group)
        or len(together) > MOST_KERNELS
        or not all(map(_is_small, together))
    ):
        return False
    specs = list(map(launch_spec, together))
    warps = {spec.config.num_warps for spec in specs}
    return (
        sum(len(spec.signature) for spec in specs) <= MOST_TENSORS
        and len({spec.index for spec in specs}) == 1
        and (len(warps) == 1 or all(_programs(spec) <= FEW_PROGRAMS for spec in specs))
        and may("launch", "share a launch", together[-1].kernel.name)
    )


def _is_small(source: KernelSource) -> bool:
    kernel = source.kernel
    is_one = len(sequence_of(source).parts) == 1
    if not isinstance(kernel, Kernel) or kernel.sizes or not is_one:
        return False
    moved = sum(int(buffer.numel) * buffer.dtype.itemsize for buffer in kernel.buffers)
    spec = launch_spec(source)
    return moved <= MOST_BYTES and spec.index != "dynamic" and _programs(spec) > 0


def _programs(spec: LaunchSpec) -> int:
    return program_counter(spec)(())


def shared(sources: Sequence[KernelSource]) -> KernelSource:
    """The source of kernels of known sizes that are launched as one."""
    specs = list(map(launch_spec, sources))
    name = "_".join(dict.fromkeys(source.kernel.name for source in sources))
    functions, calls, tensors, numbers = [], [], [], []
    for i, (source, spec) in enumerate(zip(sources, specs)):
        function = f"{spec.function}_part{i}"
        functions.append(_as_function(source, spec, function))
        own = [f"tensor{i}_{j}" for j in range(len(spec.signature))]
        counts = [f"number{i}_{j}" for j in range(len(spec.numbers))]
        calls.append((function, [*own, *counts, *([ERRORS] if spec.errors else [])]))
        tensors += own
        numbers += counts
    errors = any(spec.errors for spec in specs)
    parameters = ", ".join((*tensors, *numbers, *([ERRORS] if errors else [])))
    lines = [DECORATOR, f"def {name}({parameters}):", f"    program = {PROGRAM}"]
    lines += _dispatch(calls, list(map(_programs, specs)))
    config = replace(specs[0].config, num_warps=max(spec.config.num_warps for spec in specs))
    text = assemble(
        dict.fromkeys(origin for source in sources for origin in source.kernel.origins),
        config,
        "\n\n".join((*functions, "\n".join(lines) + "\n")),
    )
    spec = LaunchSpec(
        function=name,
        signature=tuple(each for spec in specs for each in spec.signature),
        sizes=(),
        blocks=(),
        batch=sympy.Integer(sum(map(_programs, specs))),
        config=config,
        index=specs[0].index,
        limits=tuple(limit for spec in specs for limit in spec.limits),
        errors=errors,
        numbers=tuple(number for spec in specs for number in spec.numbers),
    )
    buffers = tuple(
        replace(buffer, name=f"tensor{i}_{j}")
        for i, source in enumerate(sources)
        for j, buffer in enumerate(source.kernel.buffers)
    )
    kernel = Kernel(name, sources[0].kernel.device, buffers, (), (), (), ())
    return KernelSource(kernel, text, (("launch", spec),))


def _as_function(source: KernelSource, spec: LaunchSpec, name: str) -> str:
    """The kernel as a device function that is told its program."""
    head = f"{DECORATOR}\ndef {spec.function}("
    parameters, _, body = source.text.rpartition(head)[2].partition("):")
    given = f"{parameters}, program"
    return f"{DECORATOR}\ndef {name}({given}):{body.replace(PROGRAM, 'program')}"


def _dispatch(calls: Sequence[tuple[str, Sequence[str]]], counts: Sequence[int]) -> list[str]:
    lines, first = [], 0
    for i, ((function, arguments), count) in enumerate(zip(calls, counts)):
        given = ", ".join((*arguments, f"program - {first}" if first else "program"))
        first += count
        last = i == len(calls) - 1
        lines.append("    else:" if last else f"    {'elif' if i else 'if'} program < {first}:")
        lines.append(f"        {function}({given})")
    return lines
