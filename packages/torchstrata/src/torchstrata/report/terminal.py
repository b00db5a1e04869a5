"""A trace as text: a summary, a graph, and what became of one line."""

from __future__ import annotations

from collections.abc import Iterator

from torchstrata.errors import UsageError

from .findings import biggest_calls, moved_text, share, slowest_stages
from .model import Graph, Program, Report, Text
from .tables import Block, Table, plain_text, show
from .units import bytes_text, count_text, file_name, seconds_text

MOST = 10
"""Rows of the slowest and the biggest."""
MOST_NODES = 24
"""Lines of a stage that the life of a line shows."""
MOST_SOURCE = 60
"""Lines of a kernel's source that the life of a line shows."""


def summary_text(report: Report, graph: int | None = None) -> str:
    """The summary as plain text: frames, breaks, recompiles, slowest stages, biggest calls; or one
    graph. Raises UsageError for a graph that isn't there.
    """
    return plain_text([*_summary(report, graph)])


def print_summary(report: Report, graph: int | None = None) -> None:
    """Prints the summary, in a terminal with rich's tables. Raises UsageError."""
    show([*_summary(report, graph)])


def line_text(report: Report, graph: int | None, file: str, line: int) -> str:
    """The life of a line: its nodes in each stage of a graph (None: of all), its kernels. Raises
    UsageError if nothing comes from it.
    """
    return plain_text([*_life(report, graph, file, line)])


def print_line(report: Report, graph: int | None, file: str, line: int) -> None:
    """Prints the life of a line. Raises UsageError."""
    show([*_life(report, graph, file, line)])


def _summary(report: Report, graph: int | None) -> Iterator[Block]:
    if graph is not None:
        yield from _one_graph(report, _graph(report, graph))
        return
    kernels = sum(len(p.kernels) for g in report.graphs for p in g.programs)
    yield (
        f"{report.title}: {seconds_text(report.seconds)} of compilation, "
        f"{count_text(len(report.frames), 'frame')}, {count_text(len(report.graphs), 'graph')}, "
        f"{count_text(len(report.breaks), 'graph break')}, "
        f"{count_text(len(report.recompiles), 'recompile')}, {count_text(kernels, 'kernel')}\n"
        f"{report.machine}, {count_text(report.threads, 'thread')}, {report.versions}"
    )
    yield from _frames(report)
    yield from _breaks(report)
    yield from _recompiles(report)
    yield _graphs(report)
    yield _stages(report)
    yield _calls(report, [report.graphs])


def _frames(report: Report) -> Iterator[Block]:
    rows = [
        (
            frame.name if frame.resumed is None else f"{frame.name} from line {frame.resumed}",
            f"{file_name(frame.file)}:{frame.first}",
            str(frame.number + 1),
            frame.outcome,
            " ".join(map(str, frame.graphs)),
            seconds_text(frame.seconds),
            str(len(frame.guards)),
            seconds_text(frame.check_seconds),
        )
        for frame in report.frames
    ]
    columns = "frame", "place", ">version", "outcome", "graphs", ">time", ">guards", ">one check"
    yield Table("Frames", columns, rows)
    rows = [
        (f.name, f"{file_name(f.file)}:{f.first}", f"{f.coverage[0]} of {f.coverage[1]}", never)
        for f in report.functions
        for never in [", ".join(str(n) for n, what in f.status.items() if what == "never")]
    ]
    yield Table("Functions", ("function", "place", ">lines captured", "never reached"), rows)


def _breaks(report: Report) -> Iterator[Block]:
    rows: dict[tuple[str, ...], None] = {}
    for frame in report.breaks:
        stop = frame.stop
        if stop is not None:
            file, line = stop.place
            rows[stop.id, f"{file_name(file)}:{line}", stop.reason, stop.hint] = None
    if rows:
        yield Table("Graph breaks", ("id", "place", "reason", "what to try"), [*rows])


def _recompiles(report: Report) -> Iterator[Block]:
    rows: list[tuple[str, ...]] = []
    for frame in report.recompiles:
        change = frame.change
        if change is None:
            continue
        asked = "" if change.asked is None else f"{file_name(change.asked[0])}:{change.asked[1]}"
        what = change.what if not change.old else f"{change.what}: {change.old} -> {change.new}"
        part = frame.name if frame.resumed is None else f"{frame.name} from line {frame.resumed}"
        rows.append((part, what, asked, change.advice))
    if rows:
        columns = ("frame", "what changed", "relied on at", "how to avoid it")
        yield Table("Recompiles", columns, rows)


def _graphs(report: Report) -> Block:
    rows = []
    for graph in report.graphs:
        if graph.same_as is not None:
            same = f"as graph {graph.same_as}, from the cache"
            rows.append((str(graph.id), same, str(graph.nodes), "", "", "", ""))
        for program in graph.programs:
            rows.append((str(graph.id), program.direction, str(graph.nodes), *_sizes(program)))
    columns = ("graph", "program", ">nodes", ">kernels", ">calls", ">moves", ">peak")
    return Table("Graphs", columns, rows)


def _sizes(program: Program) -> tuple[str, ...]:
    moved = sum(call.bytes_read + call.bytes_written for call in program.calls)
    counts = (str(len(program.kernels)), str(len(program.calls)))
    return (*counts, bytes_text(moved), bytes_text(program.peak))


def _stages(report: Report) -> Block:
    rows = [
        (
            f"graph {span.graph}",
            span.name,
            seconds_text(span.seconds),
            share(span.seconds, report.seconds),
        )
        for span in slowest_stages(report)[:MOST]
    ]
    return Table("Slowest stages", ("graph", "stage", ">time", ">share"), rows)


def _calls(report: Report, graphs: list[list[Graph]]) -> Block:
    chosen = {graph.id for each in graphs for graph in each}
    calls = [item for item in biggest_calls(report) if item[0].id in chosen]
    rows = []
    for graph, program, call in calls[:MOST]:
        file, line = graph.places[call.places[0]] if call.places else ("", 0)
        rows.append(
            (
                f"{graph.id} {program.direction}",
                call.name,
                "" if call.kernel is None else call.title,
                f"{file_name(file)}:{line}" if file else "",
                moved_text(call),
                seconds_text(call.estimate),
                seconds_text(call.mean),
            )
        )
    columns = ("graph", "call", "computes", "line", ">moves", ">estimate", ">measured")
    return Table("Biggest kernels and calls", columns, rows)


def _graph(report: Report, number: int) -> Graph:
    for graph in report.graphs:
        if graph.id == number:
            return graph
    known = ", ".join(str(graph.id) for graph in report.graphs) or "none"
    raise UsageError(f"no graph {number} is in this trace; there are: {known}")


def _one_graph(report: Report, graph: Graph) -> Iterator[Block]:
    lookups = [
        f"{'hit' if x.hit else 'miss'}: the {x.direction or 'captured'} "
        f"{'program' if x.what == 'program' else 'graph'} {x.reason}"
        for x in graph.lookups
    ]
    head = f"graph {graph.id}: {count_text(graph.nodes, 'node')}, {seconds_text(graph.seconds)}"
    yield "\n".join([head, *lookups])
    if graph.same_as is not None:
        yield f"made of the programs of graph {graph.same_as}"
    for program in graph.programs:  # forward before backward
        rows = [(span.name, seconds_text(span.seconds)) for span in program.stages]
        yield Table(f"Stages, {program.direction}", ("stage", ">time"), rows)
        rows = [
            ("fused" if d.accepted else "apart", d.first_title, d.second_title, d.reason)
            for d in sorted(program.decisions, key=lambda d: -d.saved)[:MOST]
        ]
        columns = ("", "first", "second", "why")
        yield Table(f"Fusion, {program.direction}: the {MOST} largest savings", columns, rows)
    yield _calls(report, [[graph]])
    lines = [
        f"  {file_name(file)}:{line}  {graph.code.get(number, '')}"
        for number, (file, line) in enumerate(graph.places)
    ]
    yield "\n".join([f"Lines (--graph {graph.id} --line N shows what became of one)", *lines])


def _life(report: Report, number: int | None, file: str, line: int) -> Iterator[Block]:
    graphs = report.graphs if number is None else [_graph(report, number)]
    is_found = False
    for graph in graphs:
        for place, (name, own) in enumerate(graph.places):
            if own == line and name.endswith(file):
                is_found = True
                yield from _life_in(graph, place)
    if not is_found:
        what = "any graph" if number is None else f"graph {number}"
        lines = sorted({f"{file_name(f)}:{n}" for g in graphs for f, n in g.places})
        raise UsageError(f"nothing in {what} comes from line {line}; there are {', '.join(lines)}")


def _life_in(graph: Graph, place: int) -> Iterator[Block]:
    file, line = graph.places[place]
    yield f"graph {graph.id}, {file_name(file)}:{line}  {graph.code.get(place, '')}"
    for text in graph.texts:
        yield from _nodes(text, place, text.title.lower())
    for program in graph.programs:
        if program.prims is not None:
            yield from _nodes(program.prims, place, f"prims, {program.direction}")
        for kernel in program.kernels:
            if place not in kernel.places:
                continue
            yield f"loops, {program.direction}: {kernel.title}\n{_indented(kernel.loops)}"
            source = kernel.source.splitlines()
            more = [f"... {len(source) - MOST_SOURCE} more lines"] * (len(source) > MOST_SOURCE)
            shown = _indented("\n".join([*source[:MOST_SOURCE], *more]))
            yield f"kernel, {program.direction}: {kernel.name}\n{shown}"
        for position, call in enumerate(program.calls):
            if place in call.places:
                timed = f", {seconds_text(call.mean)}" if call.mean else ""
                moved = moved_text(call)
                yield f"call {position}, {program.direction}: {call.name}, {moved}{timed}"


def _nodes(text: Text, place: int, title: str) -> Iterator[Block]:
    lines = [line for line, own in zip(text.lines, text.places, strict=True) if own == place]
    if lines:
        more = [f"    ... {len(lines) - MOST_NODES} more"] * (len(lines) > MOST_NODES)
        yield "\n".join([title, *lines[:MOST_NODES], *more])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip("\n").splitlines())
