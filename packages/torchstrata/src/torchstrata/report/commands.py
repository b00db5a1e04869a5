"""The commands ``report`` and ``explain``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from torchstrata.errors import UsageError

from .chrome import chrome_trace
from .dumps import dump_text
from .page import render_page
from .reader import read_report, traces
from .terminal import print_line, print_summary


def add_commands(commands: Any) -> None:
    """Adds the parsers of both commands."""
    report = commands.add_parser("report", help="make a page of a trace (STRATA_TRACE)")
    report.add_argument("directory", type=Path)
    report.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    report.add_argument("--chrome", type=Path, help="write the timeline for Perfetto, too")
    explain = commands.add_parser("explain", help="say what a trace or a dump has")
    explain.add_argument("directory", type=Path)
    explain.add_argument("--graph", type=int, help="the number of a graph, for --line")
    explain.add_argument("--line", type=int, help="what became of a line of the program")
    explain.add_argument("--file", default="", help="the end of the name of the line's file")


def run(chosen: argparse.Namespace) -> int:
    """Exits with 1 if there is nothing to read."""
    try:
        if len(found := traces(chosen.directory)) > 1:
            others = ", ".join(path.name for path in found[:-1])
            print(f"{found[-1].name} of several processes; others: {others}", file=sys.stderr)
        if chosen.command == "report":
            return _write(chosen)
        if not found:
            print(dump_text(chosen.directory))
        elif chosen.line is None:
            print_summary(read_report(chosen.directory), chosen.graph)
        else:
            print_line(read_report(chosen.directory), chosen.graph, chosen.file, chosen.line)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _write(chosen: argparse.Namespace) -> int:
    report = read_report(chosen.directory)
    chosen.output.write_text(render_page(report), encoding="utf-8")
    if chosen.chrome is not None:
        chosen.chrome.write_text(chrome_trace(report), encoding="utf-8")
    size = chosen.output.stat().st_size
    print(f"{chosen.output}: {len(report.graphs)} graphs, {size / 1e6:.1f} MB")
    return 0
