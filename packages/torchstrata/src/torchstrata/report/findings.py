"""What a reader should look at first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .model import Call, Graph, Program, Report, Span
from .units import bytes_text, count_text, file_name, seconds_text

LONG_CHECK = 50e-6
"""Seconds of a guard check that are worth a remark."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A remark: ``level`` is "bad", "slow" or "good"; ``anchor`` the part of the page."""

    level: str
    text: str
    detail: str
    anchor: str


def findings(report: Report) -> list[Finding]:
    """Breaks, recompiles, failures, slow guards, and where time goes, in this order."""
    found = [*_breaks(report), *_recompiles(report), *_failures(report), *_guards(report)]
    if report.graphs and not any(f.level == "bad" for f in found):
        found.append(Finding("good", "No graph breaks and no recompiles.", "", "functions"))
    stage = slowest_stages(report)[:1]
    found += [
        Finding(
            "slow",
            f"{span.name} of graph {span.graph} takes {seconds_text(span.seconds)}, "
            f"{share(span.seconds, report.seconds)} of compilation.",
            "",
            "timeline",
        )
        for span in stage
    ]
    return found


def _breaks(report: Report) -> Iterator[Finding]:
    seen: set[tuple[str, tuple[str, int]]] = set()
    for frame in report.breaks:
        stop = frame.stop
        if stop is None or (stop.id, stop.place) in seen:
            continue
        seen.add((stop.id, stop.place))
        file, line = stop.place
        where = f"{file_name(file)}:{line}"
        text = f"Graph break {stop.id} at {where}: {stop.reason}."
        yield Finding("bad", text, stop.hint, f"function-{frame.file}:{frame.first}")


def _recompiles(report: Report) -> Iterator[Finding]:
    seen: set[str] = set()
    for frame in report.recompiles:
        change = frame.change
        if change is None or frame.resumed is not None or change.text in seen:
            continue
        seen.add(change.text)
        text = f"{frame.name} was compiled again: {change.text}."
        yield Finding("bad", text, change.advice, f"function-{frame.file}:{frame.first}")


def _failures(report: Report) -> Iterator[Finding]:
    for graph in report.graphs:
        if graph.error:
            yield Finding("bad", f"Graph {graph.id} failed: {graph.error}", "", f"graph-{graph.id}")
    for frame in report.frames:
        if frame.error:
            anchor = f"function-{frame.file}:{frame.first}"
            yield Finding("bad", f"{frame.name}: {frame.error}", "", anchor)


def _guards(report: Report) -> Iterator[Finding]:
    for frame in report.frames:
        if frame.check_seconds is not None and frame.check_seconds > LONG_CHECK:
            text = (
                f"{count_text(len(frame.guards), 'guard')} of {frame.name} cost "
                f"{seconds_text(frame.check_seconds)} per call."
            )
            yield Finding("slow", text, "", f"function-{frame.file}:{frame.first}")


def share(part: float, whole: float) -> str:
    """A percentage."""
    return f"{100 * part / whole:.0f} %" if whole else ""


def slowest_stages(report: Report) -> list[Span]:
    """The stages of all graphs, the slowest first."""
    stages = [span for span in report.spans if span.level == 2]
    return sorted(stages, key=lambda span: -span.seconds)


def biggest_calls(report: Report) -> list[tuple[Graph, Program, Call]]:
    """Launches and extern calls, those that take longest first: measured where they were, else
    estimated, else by the bytes that they move.
    """

    def weight(item: tuple[Graph, Program, Call]) -> tuple[float, float]:
        call = item[2]
        moved = call.bytes_read + call.bytes_written
        return call.mean or call.estimate or 0.0, moved

    calls = [(g, p, call) for g in report.graphs for p in g.programs for call in p.calls]
    return sorted(calls, key=weight, reverse=True)


def moved_text(call: Call) -> str:
    """The bytes that a call moves."""
    return bytes_text(call.bytes_read + call.bytes_written)
