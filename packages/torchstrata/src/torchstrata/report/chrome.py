"""The timeline in the trace format of Chrome, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json

from .model import Report

_ROWS = ("frames", "graphs", "stages")


def chrome_trace(report: Report) -> str:
    """The trace as JSON text."""
    names = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": level, "args": {"name": name}}
        for level, name in enumerate(_ROWS)
    ]
    events = [
        {
            "name": span.name,
            "cat": _ROWS[span.level],
            "ph": "X",
            "ts": round(span.at * 1e6, 1),
            "dur": round(span.seconds * 1e6, 1),
            "pid": 0,
            "tid": span.level,
            "args": {"frame": span.frame, "graph": span.graph},
        }
        for span in report.spans
    ]
    return json.dumps({"traceEvents": [*names, *events], "displayTimeUnit": "ms"})
