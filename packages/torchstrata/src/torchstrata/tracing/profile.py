"""Times of kernels and extern calls: a clock around each call of a program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import loopir
import torch
from loopir import HostProgram, ProgramSummary
from torch._ops import OpOverload

from .titles import title_of


@dataclass(slots=True)
class _Timing:
    """The seconds of one step of a program; ``first`` are those of the first call, in which
    libraries prepare themselves.
    """

    label: str
    count: int = 0
    first: float = 0.0
    total: float = 0.0
    least: float = float("inf")

    def add(self, seconds: float) -> None:
        if not self.count:
            self.first = seconds
        self.count += 1
        self.total += seconds
        self.least = min(self.least, seconds)


@dataclass(slots=True)
class _ProgramProfile:
    """The steps of a program, in order; ``position`` is that of the next one."""

    graph: int
    direction: str
    steps: list[_Timing]
    position: int = 0
    pending: list[tuple[int, Any, Any]] = field(default_factory=list)

    def begin(self) -> None:
        self.position = 0
        self.flush()

    def flush(self) -> None:
        """Adds the times of CUDA events that have passed."""
        if self.pending:
            torch.cuda.synchronize()
        for position, first, last in self.pending:
            self.steps[position].add(first.elapsed_time(last) / 1e3)
        self.pending.clear()


class Profile:
    """The times of all programs of a session."""

    def __init__(self) -> None:
        self._programs: list[_ProgramProfile] = []

    def measured(
        self, graph: int, direction: str, host: HostProgram, summary: ProgramSummary
    ) -> HostProgram:
        """The program with a clock around each launch and extern call. Each is a range in
        ``torch.profiler`` and NVTX, named after what it computes and the user's line.
        """
        labels = [_label(call) for call in summary.calls]
        steps = _ProgramProfile(graph, direction, [_Timing(label) for label in labels])
        self._programs.append(steps)
        on_cuda = any(device.type == "cuda" for device in host.facts.devices)
        clock = _cuda_clock if on_cuda else _cpu_clock
        launchers = {
            device: {name: clock(steps, function) for name, function in made.items()}
            for device, made in host.text.launchers.items()
        }
        objects: Mapping[str, object] = {
            name: clock(steps, loopir.direct(value)) if isinstance(value, OpOverload) else value
            for name, value in host.text.objects.items()
        }
        text = loopir.HostText(host.source, objects, launchers)
        function = text.load()

        def run(*args: Any) -> list:
            steps.begin()
            return function(*args)

        return HostProgram(host.facts, text, run, lambda: (host.program, host.sources))

    def results(self) -> Iterator[dict[str, Any]]:
        """The facts of an event per program that ran."""
        for program in self._programs:
            program.flush()
            steps = [
                {
                    "count": s.count,
                    "first": s.first,
                    "total": s.total,
                    "least": s.least if s.count else None,
                }
                for s in program.steps
            ]
            yield {"graph": program.graph, "direction": program.direction, "steps": steps}


def _label(call: loopir.CallSummary) -> str:
    line = next((line for _, line in call.origins if line), "")
    name = (
        call.name if call.kernel is None else f"{call.name} {title_of(n for n, _ in call.origins)}"
    )
    return f"{name}: {line}" if line else name


def _cpu_clock(program: _ProgramProfile, function: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        position, program.position = program.position, program.position + 1
        if position >= len(program.steps):
            return function(*args, **kwargs)
        step = program.steps[position]
        with torch.profiler.record_function(step.label):
            started = time.perf_counter()
            result = function(*args, **kwargs)
            step.add(time.perf_counter() - started)
        return result

    return run


def _cuda_clock(program: _ProgramProfile, function: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        position, program.position = program.position, program.position + 1
        if position >= len(program.steps):
            return function(*args, **kwargs)
        label = program.steps[position].label
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.nvtx.range_push(label)
        with torch.profiler.record_function(label):
            first.record()
            result = function(*args, **kwargs)
            last.record()
        torch.cuda.nvtx.range_pop()
        program.pending.append((position, first, last))
        return result

    return run
