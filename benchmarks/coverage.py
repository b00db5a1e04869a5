"""How much of a step runs inside graphs: Hugging Face, timm and torchvision models, captured alone,
next to torch.compile.

usage: python -m benchmarks.coverage [NAME...] [--device cuda] [--jobs N]

A row per model and mode: graphs called in a step, eager mode's ATen calls that ran outside of them,
and breaks. A frame with tensors that runs in eager mode, such as one with a break in a loop, is a
break.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks import hugging_face
from integration_tests.models import vision

GRAPH, LENGTH, TIMEOUT = "graph", 16, 600
ENTRIES: dict[str, Any] = {
    **hugging_face.ENTRIES,
    **{entry.name: entry for entry in (*vision.NAMED, *vision.EXTRA)},
}
MODES = ("inference", "training")


def marked(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
    """A backend that runs a graph as it is, visible to the profiler."""

    def run(*args: Any) -> Any:
        with record_function(GRAPH):
            return module.forward(*args)

    return run


def calls_of(step: Callable[[], object]) -> tuple[int, int, int]:
    """The graphs called in a step, and the ATen calls inside and outside of them, without those
    that an ATen call makes.
    """
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    counts = {"graphs": 0, True: 0, False: 0}

    def visit(events: Iterable[Any], inside: bool) -> None:
        for event in events:
            if event.name.startswith("aten::"):
                counts[inside] += 1
                continue
            counts["graphs"] += event.name == GRAPH
            visit(event.cpu_children, inside or event.name == GRAPH)

    visit((event for event in found.events() if event.cpu_parent is None), False)
    return counts["graphs"], counts[True], counts[False]


def build(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A small model and keyword arguments of a call, with a padded mask where it takes one."""
    entry = ENTRIES[name]
    model = entry.build()
    return model, hugging_face.padded(entry.example(model, 2, LENGTH))


def row(name: str, mode: str, device: str) -> dict[str, Any]:
    """The counts of eager mode, ours and torch.compile."""
    import torchstrata

    torch.manual_seed(0)
    model, inputs = build(name)
    model.to(device).train(mode == "training")
    inputs = {key: value.to(device) for key, value in inputs.items()}

    def counted(call: Callable[..., Any]) -> tuple[int, int, int]:
        def step() -> None:
            torch.manual_seed(1)
            with torch.set_grad_enabled(mode == "training"):
                call(**inputs)

        for _ in range(3):
            step()
        return calls_of(step)

    found: dict[str, Any] = {"model": name, "mode": mode, "eager": counted(model)[2]}
    for key, compiled in (
        ("ours", torchstrata.compile(model, backend=marked)),
        ("tc", torch.compile(model, backend=marked)),
    ):
        try:
            found[f"{key}_graphs"], _, found[f"{key}_outside"] = counted(compiled)
        except Exception as error:
            found[key] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    return found | {
        "ours_breaks": torchstrata.counters["graph_breaks"],
        "tc_breaks": incumbent_breaks(),
        "fallbacks": torchstrata.counters["fallbacks"],
    }


def incumbent_breaks() -> int:
    """The breaks of torch.compile so far, and the frames that it gave up."""
    from torch._dynamo.utils import counters

    frames = counters["frames"]
    return sum(counters["graph_break"].values()) + frames["total"] - frames["ok"]


def in_own_process(task: tuple[str, str], device: str) -> dict[str, Any]:
    """A row by a process of its own; its error if it has none."""
    command = [sys.executable, "-m", "benchmarks.coverage", *task, "--device", device, "--one"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        return json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError) as error:
        said = (error.stderr if isinstance(error, subprocess.TimeoutExpired) else done.stderr) or ""
        last = str(said).strip().splitlines()[-1:] or [type(error).__name__]
        return {"model": task[0], "mode": task[1], "error": last[0][:200]}


def summarise(rows: list[dict[str, Any]]) -> None:
    """Totals, and the rows in which ours is interrupted more often than torch.compile."""
    ran = [found for found in rows if "ours_graphs" in found]
    print(f"{len(ran)} of {len(rows)} rows, fallbacks {sum(found['fallbacks'] for found in ran)}")
    for key in ("ours", "tc"):
        counted = [found for found in ran if f"{key}_graphs" in found]
        whole = sum(found[f"{key}_graphs"] == 1 for found in counted)
        left, calls = (
            sum(found[what] for found in counted) for what in (f"{key}_outside", "eager")
        )
        print(
            f"{key}: one graph in {whole} of {len(counted)}, {1 - left / calls:.2%} of {calls} calls inside"
        )
    for found in ran:
        counts = ("graphs", "outside", "breaks")
        if any(
            found[f"ours_{what}"] > found.get(f"tc_{what}", found[f"ours_{what}"])
            for what in counts
        ):
            print("behind:", json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--one", action="store_true", help="NAME MODE: a row in this process")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        warnings.simplefilter("ignore")
        print(json.dumps(row(*options.names, options.device)))
        return
    tasks = [(name, mode) for name in options.names or ENTRIES for mode in MODES]

    def run(task: tuple[str, str]) -> dict[str, Any]:
        found = in_own_process(task, options.device)
        print(json.dumps(found), flush=True)
        return found

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(run, tasks))
    summarise(rows)


if __name__ == "__main__":
    main()
