"""Reads a trace directory."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchstrata.errors import UsageError
from torchstrata.tracing.titles import title_of

from .changes import change_of
from .lifetimes import peak, placed
from .model import (
    Break,
    Buffer,
    Call,
    Decision,
    Frame,
    Function,
    Graph,
    Guard,
    Kernel,
    Lookup,
    Program,
    Report,
    Span,
    Text,
)
from .texts import Places, numbers_of, plain_text, read_graph_text, without_header

EVENTS = "events.jsonl"
FORMAT = 1
_TEXTS = (
    ("10-captured.py", "Captured"),
    ("20-joint.py", "Joint"),
    ("20-inference.py", "Functional"),
    ("20-forward.py", "Forward"),
    ("20-backward.py", "Backward"),
)
_EXECUTED = {"captured": "captured", "broke": "captured", "skipped": "eager", "failed": "eager"}
_RANK = {"never": 0, "eager": 1, "captured": 2, "broke": 3}
DIRECTIONS = ("inference", "forward", "backward")


def read_report(directory: str | os.PathLike[str]) -> Report:
    """The report of a trace directory, or of the last session in one with several.

    Raises UsageError if there is no trace.
    """
    directory = Path(directory)
    files = _sessions(directory)
    if not files:
        raise UsageError(
            f"{directory}: no trace here; run a program with STRATA_TRACE={directory}, or within "
            f"torchstrata.trace({str(directory)!r})"
        )
    return _Reader(files[-1].parent).read()


def traces(directory: Path) -> list[Path]:
    """The traces in a directory, one per process, or the directory itself if it is one; the one
    that ``read_report`` reads is last.
    """
    return [file.parent for file in _sessions(directory)]


def _sessions(directory: Path) -> list[Path]:
    """The files of events, those of processes that compiled something last; else by age."""
    if (directory / EVENTS).is_file():
        return [directory / EVENTS]
    found = directory.glob(f"*/{EVENTS}")
    return sorted(found, key=lambda file: (_has_frames(file), file.stat().st_mtime))


def _has_frames(file: Path) -> bool:
    with open(file, encoding="utf-8") as lines:
        return any(line.startswith('{"event": "frame"') for line in lines)


@dataclass
class _Reader:
    directory: Path
    events: defaultdict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    sources: dict[str, list[str]] = field(default_factory=dict)

    def read(self) -> Report:
        for event in self._read_events():
            self.events[event["event"]].append(event)
        about = (self.events["session"] or [{}])[0]
        if about.get("format") != FORMAT:
            raise UsageError(f"{self.directory}: a trace of another version of torchstrata")
        end = (self.events["end"] or [{}])[0]
        for event in self.events["source"]:
            text = (self.directory / event["text"]).read_text(encoding="utf-8")
            self.sources[event["file"]] = text.splitlines()
        self.limits = end.get("bandwidth"), end.get("rate")
        graphs = [self._graph(event) for event in self.events["graph"]]
        functions = self._functions(graphs)
        return Report(
            title=self.directory.parent.name or self.directory.name,
            machine=about["machine"],
            versions=f"Python {about['python']}, torch {about['torch']}",
            threads=about["threads"],
            bandwidth=self.limits[0],
            rate=self.limits[1],
            profiled=about["profiles"],
            functions=functions,
            graphs=sorted(graphs, key=lambda graph: graph.id),
            spans=[*self._spans()],
            sources=self.sources,
        )

    def _read_events(self) -> Iterator[dict[str, Any]]:
        with open(self.directory / EVENTS, encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):  # a process that was killed leaves half of one
                    yield json.loads(line)

    # -- frames ------------------------------------------------------------------------------------

    def _functions(self, graphs: list[Graph]) -> list[Function]:
        found: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
        for event in sorted(self.events["frame"], key=lambda event: event["at"]):
            key = (event["file"], event["first"], event["name"])
            found.setdefault(key, []).append(event)
        by_frame: defaultdict[int | None, list[int]] = defaultdict(list)
        for graph in graphs:
            by_frame[graph.frame].append(graph.id)
        return [self._function(events, by_frame) for events in found.values()]

    def _function(
        self, events: list[dict[str, Any]], graphs: dict[int | None, list[int]]
    ) -> Function:
        frames: list[Frame] = []
        for event in events:
            frame = _frame(event, [guard for known in frames for guard in known.guards])
            frame.graphs = sorted(graphs.get(frame.id, []))
            frames.append(frame)
        first, last = events[0]["first"], max(event["last"] for event in events)
        status = dict.fromkeys(events[0]["executable"], "never")

        def mark(line: int, what: str) -> None:
            if line in status and _RANK[what] > _RANK[status[line]]:
                status[line] = what

        for frame in frames:
            for line in frame.lines:
                mark(line, _EXECUTED.get(frame.outcome, "eager"))
            if frame.stop is not None and frame.stop.id != "BD008" and frame.stop.stack:
                mark(frame.stop.stack[0][1], "broke")
        lines = self.sources.get(events[0]["file"], [])
        source = {number: lines[number - 1] for number in range(first, min(last, len(lines)) + 1)}
        name, file = events[0]["name"], events[0]["file"]
        return Function(name, file, first, last, source, status, frames)

    # -- graphs ------------------------------------------------------------------------------------

    def _of_graph(self, kind: str, number: int) -> list[dict[str, Any]]:
        return [event for event in self.events[kind] if event["graph"] == number]

    def _graph(self, event: dict[str, Any]) -> Graph:
        number, places = event["id"], Places()
        lookups = self._of_graph("lookup", number)
        texts: list[Text] = []
        for file, title in _TEXTS:
            text = self._text(number, file)
            if text is not None:
                texts.append(read_graph_text(title, text, places)[0])
        programs = [self._program(number, d, places) for d in self._directions(number)]
        return Graph(
            id=number,
            frame=event["frame"],
            at=event["at"],
            seconds=event["seconds"],
            nodes=event["nodes"],
            error=event["error"],
            same_as=next((x["same_as"] for x in lookups if x["same_as"] is not None), None),
            lookups=[Lookup(x["what"], x["direction"], x["hit"], x["reason"]) for x in lookups],
            places=[*places.found],
            code=places.code,
            texts=texts,
            programs=programs,
        )

    def _directions(self, number: int) -> list[str]:
        found = {event["direction"] for event in self._of_graph("stage", number)}
        return sorted(found, key=DIRECTIONS.index)

    def _text(self, number: int, file: str) -> str | None:
        path = self.directory / f"graph-{number:03d}" / file
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def _program(self, number: int, direction: str, places: Places) -> Program:
        text = self._text(number, f"{direction}-30-prims.py")
        prims, nodes = None, dict[str, int]()
        if text is not None:
            prims, nodes = read_graph_text("Prims", text, places)
        host = self._text(number, f"{direction}-60-host.py")
        stages = [e for e in self._of_graph("stage", number) if e["direction"] == direction]
        facts = next(
            (e for e in self._of_graph("program", number) if e["direction"] == direction), {}
        )
        kernels = [_kernel(event, nodes) for event in facts.get("kernels", ())]
        profile = [e for e in self._of_graph("profile", number) if e["direction"] == direction]
        measured = profile[0]["steps"] if profile else [{}] * len(facts.get("calls", ()))
        calls = [
            self._call(*each, kernels, nodes)
            for each in zip(facts.get("calls", ()), measured, strict=True)
        ]
        found = [_buffer(event, len(calls)) for event in facts.get("buffers", ())]
        buffers = placed(found, len(calls))
        return Program(
            direction,
            prims,
            None if host is None else plain_text("Host program", host),
            kernels,
            calls,
            [_decision(event, nodes) for event in facts.get("decisions", ())],
            buffers,
            peak(buffers, len(calls)),
            [_stage(event) for event in stages],
        )

    def _call(
        self,
        event: dict[str, Any],
        measured: dict[str, Any],
        kernels: list[Kernel],
        nodes: dict[str, int],
    ) -> Call:
        kernel, count = event["kernel"], measured.get("count", 0)
        title = event["name"] if kernel is None else kernels[kernel].title
        bandwidth, rate = self.limits
        estimate = None
        if bandwidth and rate:
            moved = event["bytes_read"] + event["bytes_written"]
            estimate = max(moved / bandwidth, event["operations"] / rate)
        return Call(
            event["name"],
            kernel,
            title,
            numbers_of((name for name, _ in event["origins"]), nodes),
            event["bytes_read"],
            event["bytes_written"],
            event["operations"],
            estimate,
            count,
            _mean(measured) if count else None,
            measured["least"] if count else None,
        )

    # -- timeline ----------------------------------------------------------------------------------

    def _spans(self) -> Iterator[Span]:
        for event in self.events["frame"]:
            name = event["name"] + (f" from line {event['resumed']}" if event["resumed"] else "")
            yield Span(name, 0, event["at"], event["seconds"], frame=event["id"])
        for event in self.events["graph"]:
            name = f"graph {event['id']}"
            yield Span(name, 1, event["at"], event["seconds"], graph=event["id"])
            stages = [_stage(stage) for stage in self._of_graph("stage", event["id"])]
            end = stages[0].at if stages else event["at"] + event["seconds"]
            name = "autograd" if stages else "from the cache"
            yield Span(name, 2, event["at"], end - event["at"], graph=event["id"])
            yield from stages


def _stage(event: dict[str, Any]) -> Span:
    name = f"{event['direction']} {event['stage'][3:].partition('.')[0]}"
    return Span(name, 2, event["at"], event["seconds"], graph=event["graph"])


def _frame(event: dict[str, Any], earlier: list[Guard]) -> Frame:
    guards = [
        Guard(on, kind, text, None if asked is None else (asked[0], asked[1]), seconds)
        for on, kind, text, asked, seconds in event["guards"]
    ]
    stop = event["break"]
    return Frame(
        id=event["id"],
        name=event["name"],
        file=event["file"],
        first=event["first"],
        resumed=event["resumed"],
        number=event["number"],
        outcome=event["outcome"],
        at=event["at"],
        seconds=event["seconds"],
        lines=tuple(event["lines"]),
        guards=guards,
        check_seconds=event["check_seconds"],
        stop=None
        if stop is None
        else Break(
            stop["id"],
            stop["title"],
            stop["reason"],
            stop["hint"],
            tuple((file, line or 0, function) for file, line, function in stop["stack"]),
        ),
        change=change_of(event["recompiled"], earlier),
        error=event["error"],
    )


def _kernel(event: dict[str, Any], nodes: dict[str, int]) -> Kernel:
    names = [name for name, _ in event["origins"]]
    return Kernel(
        event["name"],
        event["title"],
        event["device"],
        numbers_of(names, nodes),
        tuple(names),
        event["loops"],
        without_header(event["source"]),
    )


def _decision(event: dict[str, Any], nodes: dict[str, int]) -> Decision:
    first, second = event["first_nodes"], event["second_nodes"]
    return Decision(
        event["first"],
        title_of(first),
        event["second"],
        title_of(second),
        numbers_of([*first, *second], nodes),
        event["accepted"],
        event["reason"],
        event["saved"],
    )


def _mean(measured: dict[str, Any]) -> float:
    """The mean without the first time, if there are others."""
    total, count = measured["total"], measured["count"]
    return total if count == 1 else (total - measured["first"]) / (count - 1)


def _buffer(event: dict[str, Any], calls: int) -> Buffer:
    death = calls if event["death"] is None else event["death"]
    return Buffer(**{**event, "death": death})
