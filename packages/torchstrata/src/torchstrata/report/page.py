"""The report as one self-contained HTML file: data as JSON, which the page shows when asked."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup, escape

from .findings import findings, share
from .model import Call, Decision, Frame, Function, Graph, Guard, Place, Program, Report, Text
from .regions import regions
from .units import bytes_text, count_text, file_name, seconds_text

LARGEST_PLAIN = 8_000_000
"""Characters of data up to which it is not compressed."""


class Page(str):
    """The HTML text. A notebook shows it in a frame of its own."""

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self)}" style="width:100%;height:80vh;border:0"></iframe>'


def render_page(report: Report) -> Page:
    """The report as one file."""
    environment = Environment(
        loader=PackageLoader("torchstrata.report"),
        autoescape=select_autoescape(["html", "html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "seconds": seconds_text,
        "bytes": bytes_text,
        "file_name": file_name,
    }
    environment.globals |= {"count": count_text, "share": share}
    template = environment.get_template("page.html.j2")
    loader = environment.loader
    assert loader is not None
    style, script = (
        Markup(loader.get_source(environment, name)[0]) for name in ("style.css", "page.js")
    )
    text = template.render(
        report=report,
        findings=findings(report),
        totals=_totals(report),
        data=_data(report),
        names={frame.id: _part_name(frame) for frame in report.frames},
        style=style,
        script=script,
        anchor=_anchor,
    )
    return Page(text)


def _data(report: Report) -> list[tuple[str, str, str]]:
    """The name, type and text of each script element with data: JSON, or what is left of it by
    gzip in base64 if the page would be large.
    """
    values = {"overview": _overview(report), "guards": _guards(report)}
    values |= {f"graph-{graph.id}": _graph_data(graph, report) for graph in report.graphs}
    texts = {name: _json(value) for name, value in values.items()}
    if sum(map(len, texts.values())) <= LARGEST_PLAIN:
        return [(name, "application/json", text) for name, text in texts.items()]
    overview = texts.pop("overview")
    packed = {name: gzip.compress(text.encode(), 6, mtime=0) for name, text in texts.items()}
    return [
        ("overview", "application/json", overview),
        *((name, "application/gzip", b64encode(data).decode()) for name, data in packed.items()),
    ]


def _json(value: Any) -> Markup:
    """JSON that can stand in a script element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c"))


def _anchor(function: Function) -> str:
    return f"function-{function.file}:{function.first}"


def _part_name(frame: Frame) -> str:
    """A function, or the rest of it from a line on."""
    name = frame.name.rpartition("<locals>.")[2]
    return name if frame.resumed is None else f"{name} from line {frame.resumed}"


def _totals(report: Report) -> list[tuple[str, str, str]]:
    """The cards of the overview: figure, what it counts, a remark."""
    calls = [call for g in report.graphs for p in g.programs for call in p.calls]
    kernels = sum(len(p.kernels) for g in report.graphs for p in g.programs)
    lookups = [lookup for g in report.graphs for lookup in g.lookups if lookup.what == "graph"]
    hits = sum(lookup.hit for lookup in lookups)
    covered = [f.coverage for f in report.functions]
    lines = sum(captured for captured, _ in covered), sum(total for _, total in covered)
    again = sum(frame.seconds for frame in report.recompiles)
    launches = sum(call.kernel is not None for call in calls)
    return [
        (seconds_text(report.seconds), "compilation", f"{count_text(len(report.frames), 'frame')}"),
        (str(len(report.graphs)), "graphs", f"{sum(g.nodes for g in report.graphs):,} nodes"),
        (str(len(report.breaks)), "graph breaks", f"{lines[0]} of {lines[1]} lines captured"),
        (str(len(report.recompiles)), "recompiles", f"took {seconds_text(again)}" if again else ""),
        (f"{kernels:,}", "kernels", f"{launches:,} launches, {len(calls) - launches:,} extern"),
        (f"{hits} / {len(lookups)}", "cache hits", "of captured graphs"),
    ]


def _overview(report: Report) -> dict[str, Any]:
    return {
        "spans": [
            [s.name, s.level, round(s.at, 6), round(s.seconds, 6), s.frame, s.graph]
            for s in report.spans
        ],
        "functions": [
            {"name": f.name, "file": f.file, "first": f.first, "anchor": _anchor(f),
             "lines": [*f.source.values()]}
            for f in report.functions
        ],
    }  # fmt: skip


def _guards(report: Report) -> dict[str, Any]:
    """The guards of all frames, each once: a function that is compiled again has most of them
    again. Places refer to a list of files; nanoseconds are those of a frame.
    """
    files: dict[str, int] = {}
    rows: dict[tuple[Any, ...], int] = {}

    def row(guard: Guard) -> int:
        asked = guard.asked
        place = None if asked is None else (files.setdefault(asked[0], len(files)), asked[1])
        return rows.setdefault((guard.on, guard.text, place), len(rows))

    frames = {
        frame.id: {
            "rows": [row(guard) for guard in frame.guards],
            "nanoseconds": [
                None if g.seconds is None else round(g.seconds * 1e9) for g in frame.guards
            ]
            if any(g.seconds is not None for g in frame.guards)
            else None,
        }
        for frame in report.frames
    }
    return {"rows": [*rows], "files": [*files], "frames": frames}


# -- graphs ----------------------------------------------------------------------------------------


def _graph_data(graph: Graph, report: Report) -> dict[str, Any]:
    return {
        "id": graph.id,
        "places": [[file, line, graph.code.get(n, "")] for n, (file, line) in _numbered(graph)],
        "regions": [*_regions(graph, report)],
        "texts": [_text(text) for text in graph.texts],
        "programs": [_program(program) for program in graph.programs],
    }


def _numbered(graph: Graph) -> Iterable[tuple[int, Place]]:
    return enumerate(graph.places)


def _regions(graph: Graph, report: Report) -> Iterable[dict[str, Any]]:
    """The user's code from which the graph comes, with the number of the place of each line."""
    by_file: dict[str, list[int]] = {}
    for file, line in graph.places:
        by_file.setdefault(file, []).append(line)
    numbers = {place: number for number, place in _numbered(graph)}
    for file, lines in by_file.items():
        source = report.sources.get(file)
        if source is None:
            code = [(line, graph.code.get(numbers[file, line], "")) for line in sorted(lines)]
            yield {
                "file": file,
                "title": "",
                "numbers": [line for line, _ in code],
                "lines": [text for _, text in code],
                "places": [numbers[file, line] for line, _ in code],
            }
            continue
        for region in regions(file, source, lines):
            own = range(region.first, region.first + len(region.lines))
            yield {
                "file": file,
                "title": region.title,
                "numbers": [*own],
                "lines": region.lines,
                "places": [numbers.get((file, line), -1) for line in own],
            }


def _text(text: Text | None) -> dict[str, Any] | None:
    if text is None:
        return None
    return {"title": text.title, "lines": text.lines, "places": text.places}


def _program(program: Program) -> dict[str, Any]:
    return {
        "direction": program.direction,
        "prims": _text(program.prims),
        "host": _text(program.host),
        "kernels": [
            [k.name, k.title, k.places, k.loops.rstrip("\n"), k.source] for k in program.kernels
        ],
        "calls": [_call(call) for call in program.calls],
        "decisions": [
            [d.first, d.first_title, d.second, d.second_title, d.places, *_verdict(d)]
            for d in program.decisions
        ],
        "buffers": [
            [b.name, b.kind, b.dtype, b.shape, b.size, b.birth, b.death, b.memory, b.offset]
            for b in program.buffers
        ],
        "peak": program.peak,
    }  # fmt: skip


def _verdict(decision: Decision) -> Sequence[Any]:
    return decision.accepted, decision.reason, decision.saved


def _call(call: Call) -> Sequence[Any]:
    def microseconds(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1e6, 3)

    return [
        call.name,
        call.kernel,
        call.title,
        call.places,
        call.bytes_read,
        call.bytes_written,
        call.operations,
        microseconds(call.estimate),
        microseconds(call.mean),
        microseconds(call.least),
        None if call.share is None else round(call.share, 4),
    ]
