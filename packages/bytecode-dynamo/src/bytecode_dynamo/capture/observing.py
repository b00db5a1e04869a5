"""Reports of captures to observers, such as a trace. Without observers nothing is collected."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Protocol

from symshapes import unlocked

from bytecode_dynamo.errors import BreakRecord, Place, Unsupported
from bytecode_dynamo.guards.guards import GuardProgram, compile_guards
from bytecode_dynamo.guards.records import GuardRecord, Guards, ShapeGuards
from bytecode_dynamo.guards.source import Scope
from bytecode_dynamo.hook.frame_hook import NULL, Entry, FrameView
from bytecode_dynamo.hook.origins import origins
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.frame import Frame
from bytecode_dynamo.trace import TORCH_ROOT

CHECKS, ROUNDS = 8, 3
"""How often guards are checked in a row to measure a check, and how often that is done: the fastest
round counts.
"""


@dataclass(slots=True)
class FrameReport:
    """One capture of a frame, filled in while it runs.

    Attributes:
        code: the function as the user wrote it.
        resumed: the line where a resume function continues; None for a call of the function.
        number: how many entries the code has already.
        outcome: "captured", "broke", "skipped" (runs in eager mode), or "failed".
        stop: why the graph ended before the frame.
        lines: the lines of the function that were evaluated.
        guards: what has to hold before a call.
        asked: per guard, by position, the user's line that required it.
        shapes: the conditions on sizes.
        recompiled: why no earlier graph of the code fits.
        error: what the capture raised.
        measure: seconds that one check takes, of all guards or only of those given.
    """

    code: CodeType
    resumed: int | None
    number: int
    outcome: str = "skipped"
    stop: BreakRecord | None = None
    lines: set[int] = field(default_factory=set)
    guards: Sequence[GuardRecord] = ()
    asked: Mapping[int, Place] = field(default_factory=dict)
    shapes: ShapeGuards = field(default_factory=ShapeGuards)
    recompiled: str | None = None
    error: str | None = None
    measure: Callable[[Sequence[GuardRecord] | None], float] | None = None

    @contextmanager
    def evaluation(self, ctx: Context, frame: Frame) -> Iterator[None]:
        """Watches an evaluation of the frame in a ``with`` block; an earlier one is forgotten."""
        visited = frame.visited = set[int]()
        ctx.guards.place = lambda: _user_place(ctx.frame)
        try:
            yield
        finally:
            code = frame.decoded.instructions
            lines = {code[index].position[0] for index in visited}
            self.lines = {line for line in lines if line is not None}

    def note_entry(
        self, entry: Entry, view: FrameView, guards: Guards, shapes: ShapeGuards, scope: Scope
    ) -> None:
        """Keeps what an entry requires."""
        self.guards, self.asked, self.shapes = tuple(guards), guards.asked_by, shapes
        if self.outcome == "skipped":
            self.outcome = "captured"
        arguments = tuple(value for value in view.locals if value is not NULL)

        def measure(records: Sequence[GuardRecord] | None) -> float:
            program = entry.guard
            if records is not None:
                program = compile_guards(records, ShapeGuards(), view.code, scope)
            return min(_seconds_of(program, view.function, arguments) for _ in range(ROUNDS))

        self.measure = measure


def _user_place(frame: Frame | None) -> Place | None:
    """The innermost line outside of torch."""
    while frame is not None and frame.code.filename.startswith(TORCH_ROOT):
        frame = frame.parent
    return None if frame is None else frame.place()


def _seconds_of(program: GuardProgram, function: Any, arguments: tuple[Any, ...]) -> float:
    started = time.perf_counter()
    program.check(function, arguments, CHECKS)
    return (time.perf_counter() - started) / CHECKS


class Observer(Protocol):
    """What a trace implements."""

    def capture_begins(self, report: FrameReport) -> None:
        """Called before a frame is evaluated."""
        ...

    def capture_ends(self, report: FrameReport) -> None:
        """Called once the frame has its entry, or none."""
        ...


observers: list[Observer] = []
"""Called for each capture, in all threads."""


@contextmanager
def observed(view: FrameView, number: int) -> Iterator[FrameReport | None]:
    """The report of a capture in a ``with`` block; None without observers."""
    watching = tuple(observers)
    if not watching:
        yield None
        return
    origin = origins.by_code.get(id(view.code))
    code, resumed = view.code, None
    if origin is not None:
        code = origin.original.native
        resumed = origin.original.neutral.position_at(origin.resume.target)[0]
    report = FrameReport(code, resumed, number)
    with ExitStack() as ends:
        for observer in watching:
            observer.capture_begins(report)
            ends.callback(_end, observer, report)
        try:
            yield report
        except Exception as error:
            report.outcome, report.error = "failed", f"{type(error).__name__}: {error}"
            if isinstance(error, Unsupported):
                report.stop = error.record
            raise


def _end(observer: Observer, report: FrameReport) -> None:
    with unlocked():
        observer.capture_ends(report)
    report.measure = None
