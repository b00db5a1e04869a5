"""The page of docs about CPU kernels and models, from saved results.

usage: python benchmarks/cpu_page.py [ROWS.txt...]

``benchmarks/results/micro.json`` and ``cpu_models.json`` become docs/cpu.md with a plot,
docs/cpu_micro.svg. Rows that ``micro.py`` and ``cpu_models.py`` printed elsewhere are merged into
the results first.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
KEYS = {"micro": ("case", "dtype", "rows"), "cpu_models": ("case", "dtype", "mode")}
Row = dict[str, Any]
LEAST_SHARE = 80


def value_of(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def printed_row(line: str) -> Row:
    """A row as the benchmarks print it: names and values, two spaces between."""
    pairs = (part.rsplit(" ", 1) for part in line.strip().split("  ") if " " in part)
    return {name: value_of(value) for name, value in pairs}


def merge(lines: Iterable[str]) -> None:
    """Adds printed rows to the results. A row replaces the fields of the same case, but none that
    has torch.compile's time by one that has not.
    """
    environment: Row = {}
    for line in lines:
        if line.startswith("commit "):
            environment = {k: str(v) for k, v in printed_row(line).items()}
        if not line.startswith("case ") or "failed" in line:
            continue
        row = printed_row(line)
        suite = "micro" if "rows" in row else "cpu_models"
        path = RESULTS / f"{suite}.json"
        known = json.loads(path.read_text()) if path.exists() else {"rows": []}
        rows = {tuple(r.get(k) for k in KEYS[suite]): r for r in known["rows"]}
        place = tuple(row[k] for k in KEYS[suite])
        old = rows.get(place, {})
        if "ours ms" in row and "torch.compile ms" in old and "torch.compile ms" not in row:
            continue
        rows[place] = old | row | {k: v for k, v in environment.items() if k != "device"}
        path.write_text(
            json.dumps(
                {"environment": environment or known["environment"], "rows": list(rows.values())},
                indent=1,
            )
            + "\n"
        )


def table(rows: Sequence[Row], columns: dict[str, Callable[[Row], Any]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + [
        "| " + " | ".join(str(cell(row)) for cell in columns.values()) + " |" for row in rows
    ]


def field(name: str) -> Callable[[Row], Any]:
    return lambda row: row.get(name, "")


def ratio(over: str, under: str) -> Callable[[Row], Any]:
    """Time of the first over time of the second: above 1, the second is faster."""
    return lambda row: f"{row[over] / row[under]:.2f}" if row.get(over) and row.get(under) else ""


def geomean(rows: Sequence[Row], over: str, under: str) -> str:
    found = [row[over] / row[under] for row in rows if row.get(over) and row.get(under)]
    return f"{statistics.geometric_mean(found):.2f} of {len(found)}" if found else "none"


def plot(rows: Sequence[Row]) -> str:
    """Bars: torch.compile's time over ours, logarithmic, a line at 1."""
    height, left, width, scale = 14, 230, 720, 110
    parts = []
    for number, row in enumerate(rows):
        speed = row["torch.compile us"] / row["ours us"]
        top, length = 30 + number * height, scale * math.log2(max(speed, 0.25) / 0.25)
        label = f"{row['case']} {row['dtype']} {row['rows']}"
        colour = "#3a7" if speed >= 1 else "#c53"
        parts.append(f'<text x="{left - 6}" y="{top + 10}" text-anchor="end">{label}</text>')
        parts.append(
            f'<rect x="{left}" y="{top}" width="{length:.0f}" height="{height - 3}" '
            f'fill="{colour}"/>'
        )
        parts.append(f'<text x="{left + length + 4:.0f}" y="{top + 10}">{speed:.2f}</text>')
    bottom, one = 34 + len(rows) * height, left + scale * 2
    parts.append(f'<line x1="{one}" y1="24" x2="{one}" y2="{bottom}" stroke="black"/>')
    parts.append(
        '<text x="10" y="16">torch.compile\'s time over ours (1: equal; logarithmic)</text>'
    )
    style = 'font-family="sans-serif" font-size="10"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 6}" {style}>'
        + "\n".join(parts)
        + "</svg>\n"
    )


def first_calls(cases: Sequence[Row]) -> list[str]:
    """Seconds to the end of the first step, in new processes with empty and with filled caches, and
    the peak of memory.
    """
    if not cases:
        return []
    who = {
        state: (f"torch.compile {state} compile s", f"ours {state} compile s")
        for state in ("cold", "warm")
    }
    cold, warm = (geomean(cases, *pair) for pair in who.values())
    slowest = max(row["ours warm back end s"] for row in cases)
    lines = [
        "", "## First step: seconds and peak memory", "",
        f"torch.compile's time over ours, geometric means: cold {cold} rows, warm {warm} rows.",
        f'"Back end" is the part of the warm time below autograd: at most {slowest} s.', "",
    ]  # fmt: skip
    return lines + table(cases, {
        "model": field("case"), "dtype": field("dtype"), "mode": field("mode"),
        **{f"{state} s": field(f"ours {state} compile s") for state in who},
        "back end s": field("ours warm back end s"),
        **{f"torch.compile {state} s": field(f"torch.compile {state} compile s") for state in who},
        "cold: torch.compile / ours": ratio(*who["cold"]),
        "warm: torch.compile / ours": ratio(*who["warm"]),
        "peak MB": field("ours cold peak MB"),
        "torch.compile peak MB": field("torch.compile cold peak MB"),
    })  # fmt: skip


def bound_by(row: Row) -> str:
    """What limits a kernel: arithmetic, where it takes longer than a copy even with all data in the
    cache, else memory.
    """
    if "in cache us" not in row:
        return ""
    return "arithmetic" if row["in cache us"] > row["copy us"] else "memory"


def page(micro: Row, models: Row) -> str:
    kernels = sorted(micro["rows"], key=lambda r: (r["rows"], r["case"], r["dtype"]))
    cases = sorted(models["rows"], key=lambda r: (r["mode"], r["dtype"], r["case"]))
    lines = ["# CPU kernels and models", ""]
    lines += [
        "`python benchmarks/cpu_page.py` makes this page of saved rows of `benchmarks/micro.py` "
        "and `benchmarks/cpu_models.py`",
        "(see `benchmarks/results`): medians of runs in turns in one process.",
        "Ratios are times over ours: above 1, ours is faster.", "", "## Models", "",
    ]  # fmt: skip
    groups = [
        (f"{mode} {dtype}", mode, dtype)
        for mode in ("inference", "training")
        for dtype in ("fp32", "bf16")
    ]
    for label, mode, dtype in [("All", "", ""), *groups]:
        part = [row for row in cases if mode in row["mode"] and dtype in row["dtype"]]
        means = geomean(part, "eager ms", "ours ms"), geomean(part, "torch.compile ms", "ours ms")
        lines.append(
            f"- {label}: geometric mean over eager {means[0]} rows, over torch.compile {means[1]} "
            f"rows."
        )
    lines += ["", *table(cases, {
        "model": field("case"), "dtype": field("dtype"), "mode": field("mode"),
        "threads": field("threads"),
        "eager ms": field("eager ms"), "ours ms": field("ours ms"),
        "torch.compile ms": field("torch.compile ms"),
        "eager / ours": ratio("eager ms", "ours ms"),
        "torch.compile / ours": ratio("torch.compile ms", "ours ms"),
    })]  # fmt: skip
    lines += first_calls([row for row in cases if "ours cold compile s" in row])
    over = geomean(kernels, "eager us", "ours us"), geomean(kernels, "torch.compile us", "ours us")
    lines += [
        "",
        "## Kernels",
        "",
        f'Geometric mean over eager {over[0]}, over torch.compile {over[1]}. "Of a copy" is the '
        f"time ",
    ]
    lines[-1] += "to copy as many bytes as the function must move over its time. "
    lines[-1] += (
        '"In cache" is the time of as many rows when a few rows that stay in the cache are done '
        "again and again; "
    )
    lines[-1] += "where that alone is longer than the copy, arithmetic is the bound."
    lines[-1] += (
        " Most rows are of processes side by side, one per core, which share the last cache and "
        "the memory: "
    )
    lines[-1] += (
        "all their times are longer than alone, those of the copy too, so shares of a copy are no "
        "lower bounds. "
    )
    lines[-1] += f"Commits: {', '.join(sorted({row['commit'] for row in kernels}))}."
    by_memory = [row for row in kernels if bound_by(row) == "memory"]
    reached = sum(row["percent of copy"] >= LEAST_SHARE for row in by_memory)
    lines += [
        "",
        f"Of {len(by_memory)} rows bound by memory {reached} reach {LEAST_SHARE} % of a copy's "
        f"bandwidth.",
    ]
    lines += ["", "![torch.compile's time over ours](cpu_micro.svg)", ""]
    lines += table(kernels, {
        "function": field("case"), "dtype": field("dtype"), "rows": field("rows"),
        "eager us": field("eager us"),
        "ours us": field("ours us"), "torch.compile us": field("torch.compile us"),
        "eager / ours": ratio("eager us", "ours us"),
        "torch.compile / ours": ratio("torch.compile us", "ours us"),
        "of a copy": lambda r: f"{r['percent of copy']} %",
        "copy us": field("copy us"), "in cache us": field("in cache us"), "bound by": bound_by,
    })  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    for name in sys.argv[1:]:
        merge(Path(name).read_text().splitlines())
    micro, models = (json.loads((RESULTS / f"{suite}.json").read_text()) for suite in KEYS)
    peers = [row for row in micro["rows"] if "torch.compile us" in row]
    if peers:
        (DOCS / "cpu_micro.svg").write_text(
            plot(sorted(peers, key=lambda r: (r["rows"], r["case"], r["dtype"])))
        )
    (DOCS / "cpu.md").write_text(page(micro, models))


if __name__ == "__main__":
    main()
