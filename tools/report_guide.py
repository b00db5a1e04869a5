"""Writes docs/report.md: how to read a report, with what the commands print for an example.

usage: python tools/report_guide.py [--check]      --check: fail when the file is not what would be written
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TARGET = Path(__file__).parents[1] / "docs" / "report.md"
MEASURED = re.compile(r" *\b[\d.]+ (?:s|ms|µs|ns|GB/s|%)(?=\s|,|$)")
"""What differs from run to run."""
RANKED = re.compile(r"^Slowest stages.*?^```", re.MULTILINE | re.DOTALL)
HEADER = re.compile(r"^.*, \d+ threads?, Python .*$", re.MULTILINE)

PROGRAM = """\
import torch
import torchstrata


@torchstrata.compile
def step(x, weight, scale):
    y = torch.nn.functional.gelu(x @ weight)
    print("scale", scale)
    return (y.softmax(1) * scale).sum()


weight = torch.randn(64, 32, requires_grad=True)
step(torch.randn(128, 64), weight, 2).backward()
step(torch.randn(256, 64), weight, 2).backward()
"""

NOTEBOOK = """\
from pathlib import Path

from torchstrata.report import read_report, render_page

render_page(read_report(Path("trace")))
"""

PAGE = """\
# Read a report

<!-- written by tools/report_guide.py -->

A report shows what became of a program: which lines were captured, where graphs end and why, what was compiled again,
and, for each graph, every stage from your line down to the kernel. It is one HTML file that needs no network.

This page is written by `python tools/report_guide.py`, which runs the commands below.

## Record and open

```console
$ STRATA_TRACE=trace python program.py
$ python -m torchstrata report trace -o report.html
```

`program.py` of this page:

```python
{program}```

In a program or a notebook, `with torchstrata.trace("trace"):` records what is compiled within the block. What was
compiled before isn't compiled again: call `torchstrata.reset()` first.

`STRATA_TRACE_PROFILE=1` (or `trace("trace", profile=True)`) measures every kernel, extern call and guard. Launches are
then made one by one, so that the program as a whole runs a little slower. In `torch.profiler` and in Nsight (NVTX), each
kernel is named after what it computes and the line it comes from.

## The page

**Overview** begins with what to look at first: breaks and recompiles with what avoids them, guards that cost much, and the
slowest stage.

**Timeline** has a row for frames, for graphs and for stages. Drag to zoom, click a bar to go to its graph. *Chrome trace*
saves it for [Perfetto](https://ui.perfetto.dev).

**Functions** shows your source with a bar beside each line: green was captured, red ends a graph, amber ran in eager
mode, grey was never reached. Below a red line are the id of the break ([what each means](errors/index.md)), its reason
and what to try. *Recompiles* says which value was relied on, by which line, what it was and what it is now. *Guards*
lists everything that is checked before a call, with the line that asked for it and, in a profile, what it costs alone.

![A function with a graph break and recompiles](report_functions.png)

**Graphs** has five panels for each graph:

- *Stages side by side*: your code, the captured graph, the joint graph of forward and backward, prims, loops and
  generated kernels. Point at a line to see everything that it became, or where it came from; click to keep the choice.
- *Kernels and calls*: each launch and call of a library in order, with the bytes it moves, the time that takes at the
  machine's limits, and, in a profile, the measured time and its share of the limit. More than 100 % means that the data
  was in the cache.
- *Fusion*: which loops were fused or kept apart, why, and the memory traffic that this saves.
- *Memory*: when each buffer lives, and which reuse the memory of dead ones.
- *Host program*: the Python function that allocates and launches.

![The stages of one line, linked](report_stages.png)

The search box (press `/`) finds code, nodes, kernels, guards and fusion decisions.

## In a terminal

```console
$ python -m torchstrata explain trace
{summary}```

With the extra `terminal` (rich), the tables have lines and colours. `--graph 0` shows one graph, and `--line` the life of
one line:

```console
$ python -m torchstrata explain trace --graph 0 --line 7
{line}```

## In a notebook

`compiled.report()` needs no trace: it shows breaks, graphs and guards of what was captured so far. So does the result of
`torchstrata.explain(f)(x)` for one call. For the whole page in a cell:

```python
{notebook}```

## What a trace costs, and what is in it

Without a trace nothing is recorded. With one, the texts of all stages are written, which `python -m benchmarks.trace_cost` measures: at
most 10 % of the processor time of first calls.
The caches work as usual, with one exception: a graph that another process compiled is compiled again, since the cache has
no intermediate stages; the report says that it would have been a hit. Kernels that are built already are not built again.

A trace is a directory per process, `<pid>-<n>`, with `events.jsonl` (an event per line: `session`, `source`, `frame`,
`graph`, `lookup`, `stage`, `program`, `profile`, `end`) and the texts of stages in `graph-<number>`. Nothing is pickled,
and a report can be made on another machine. `python -m torchstrata report trace/<pid>-<n>` chooses one process, the default
is the last that compiled something.
"""


def run(folder: Path, *arguments: str, **environment: str) -> str:
    """The output of a Python command."""
    command = [sys.executable, *arguments]
    variables = {**os.environ, **environment, "COLUMNS": "120"}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout


def page() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        cache = str(folder / "cache")
        run(folder, "program.py", STRATA_TRACE="trace", STRATA_CACHE_DIR=cache, STRATA_VERIFY="0")
        run(folder, "-c", NOTEBOOK)
        run(folder, "-m", "torchstrata", "report", "trace", "-o", "report.html")
        explain = ("-m", "torchstrata", "explain", "trace")
        return PAGE.format(
            program=PROGRAM,
            notebook=NOTEBOOK,
            summary=run(folder, *explain),
            line=run(folder, *explain, "--graph", "0", "--line", "7"),
        )


def comparable(text: str) -> str:
    """The page without what differs from run to run: times, rows in their order, the machine, and
    the width of columns.
    """
    for pattern in (RANKED, HEADER, MEASURED):
        text = pattern.sub("", text)
    return re.sub(r" {2,}", " ", text)


def main() -> None:
    text = page()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
    elif comparable(TARGET.read_text()) != comparable(text):
        sys.exit(f"{TARGET.name} is not up to date: run python tools/report_guide.py")


if __name__ == "__main__":
    main()
