"""Captured frames as events: what ``bytecode_dynamo`` reports, in plain data."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any

from bytecode_dynamo import FrameReport, phrase
from symshapes import python_text

from .session import Session, harmless

LONGEST = 400
"""Characters of a guard's text that are kept."""
_PROVENANCE = re.compile(r'File "(.*?)", line (\d+)')


class FrameRecorder:
    """Writes an event for each capture (``bytecode_dynamo.Observer``)."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._begun: dict[int, tuple[int, float]] = {}

    def capture_begins(self, report: FrameReport) -> None:
        """Numbers the frame: graphs that are compiled until it ends are its own."""
        number = self.session.number("frame")
        self._begun[id(report)] = number, self.session.now()
        self.session.frames.append(number)

    def capture_ends(self, report: FrameReport) -> None:
        """Writes the event."""
        number, start = self._begun.pop(id(report), (-1, 0.0))
        if self.session.frames and self.session.frames[-1] == number:
            self.session.frames.pop()
        seconds = self.session.now() - start
        with harmless("a frame"):
            facts = describe_frame(report, self.session.profiles)
            for file in _files(report):
                self.session.keep_source(file)
            self.session.emit("frame", id=number, at=start, seconds=seconds, **facts)


def describe_frame(report: FrameReport, profiles: bool) -> dict[str, Any]:
    """The facts of a capture. ``profiles``: measure each guard alone, too."""
    code, stop = report.code, report.stop
    lines = _lines_of(code)
    return {
        "name": code.co_qualname,
        "file": code.co_filename,
        "first": code.co_firstlineno,
        "last": max(lines, default=code.co_firstlineno),
        "resumed": report.resumed,
        "number": report.number,
        "outcome": report.outcome,
        "lines": sorted(report.lines),
        "executable": lines,
        "break": None
        if stop is None
        else {
            "id": stop.id,
            "title": stop.title,
            "reason": stop.reason,
            "hint": stop.hint,
            "stack": [[place.filename, place.line, place.function] for place in stop.stack],
        },
        "guards": [*_guards(report, profiles)],
        "check_seconds": None if report.measure is None else report.measure(None),
        "recompiled": report.recompiled,
        "error": report.error,
    }


def _guards(report: FrameReport, profiles: bool) -> Iterator[tuple[Any, ...]]:
    """The expression, kind and text of each guard, the line that required it, and seconds."""
    for position, record in enumerate(report.guards):
        place = report.asked.get(position)
        alone = report.measure([record]) if profiles and report.measure is not None else None
        asked = None if place is None else (place.filename, place.line)
        kind, text = record.kind.name.lower(), phrase(record)[:LONGEST]
        yield record.source.shown, kind, text, asked, alone
    names = {symbol: source.shown for symbol, source in report.shapes.symbols.items()}
    for guard in report.shapes.guards:
        text = python_text(guard.expr, names)
        found = _PROVENANCE.search(guard.provenance or "")
        used = sorted(names[symbol] for symbol in guard.expr.free_symbols if symbol in names)
        asked = None if found is None else (found[1], int(found[2]))
        yield ", ".join(used) or "sizes", "size", text[:LONGEST], asked, None


def _lines_of(code: CodeType) -> list[int]:
    """The lines with instructions, without that of ``def``."""
    found = {line for _, line in dis.findlinestarts(code) if line}
    return sorted(found - {code.co_firstlineno})


def _files(report: FrameReport) -> set[str]:
    places = report.stop.stack if report.stop is not None else ()
    asked = report.asked.values()
    return {report.code.co_filename, *(place.filename for place in (*places, *asked))}
