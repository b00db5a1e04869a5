"""Kernels of common layers through Halide: next to inductor-cpp, eager, and torch.compile with its
own Halide back end where that works, in turns, on one thread.

usage: python benchmarks/halide.py [CASE...] [--rows 1024] [--schedule simple] [--peer] [--save]

The functions are those of micro.py, in float32. "ours" is inductor-cpp, "build s" the time of the
first call by way of Halide.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])  # this directory has files named like packages

import torch
import torchstrata
from inductor_halide import HalideCodeGenerator

from benchmarks.measure import alternate, environment, save_rows, single_thread_clock
from benchmarks.micro import CASES, step


def halide_of_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled by torch with its Halide back end."""
    import torch._inductor.config

    compiled = torch.compile(function, dynamic=False)

    def call(*args: Any) -> Any:
        with torch._inductor.config.patch(cpu_backend="halide"):
            return compiled(*args)

    return call


def measure(name: str, rows: int, schedule: str, peer: bool) -> dict[str, Any]:
    """Medians in microseconds."""
    torch.manual_seed(0)
    function, make, backward = CASES[name]
    inputs = make(torch.float32, rows)
    generator = HalideCodeGenerator(schedule)
    calls: dict[str, Callable[..., Any]] = {
        "eager": function,
        "ours": torchstrata.compile(function, dynamic=False),
        "halide": torchstrata.compile(function, dynamic=False, codegens={"cpu": generator}),
    }
    row: dict[str, Any] = {}
    with torch.set_grad_enabled(backward):
        gradient = torch.randn_like(function(*inputs)) if backward else None
        started = time.perf_counter()
        step(calls["halide"], inputs, gradient)
        row["build s"] = round(time.perf_counter() - started, 1)
        if peer:
            torch._dynamo.reset()
            calls["torch halide"] = halide_of_torch(function)
            try:
                step(calls["torch halide"], inputs, gradient)
            except Exception as error:  # whatever it lacks
                row["torch halide"] = type(error).__name__
                del calls["torch halide"]
        timed = {
            key: (lambda call=call: step(call, inputs, gradient)) for key, call in calls.items()
        }
        seconds = alternate(timed, rounds=11, seconds=0.02, clock=single_thread_clock())
    row |= {f"{key} us": round(1e6 * value, 1) for key, value in seconds.items()}
    row["halide over eager"] = round(seconds["eager"] / seconds["halide"], 2)
    row["halide over ours"] = round(seconds["ours"] / seconds["halide"], 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=[], help="names, or parts of names")
    parser.add_argument("--rows", default=1024, type=int, help="of the matrices")
    parser.add_argument("--schedule", default="simple", help="of HalideCodeGenerator")
    parser.add_argument("--peer", action="store_true", help="torch.compile's Halide back end, too")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/halide.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    context = environment()
    print("  ".join(f"{name} {value}" for name, value in context.items()))
    rows: list[dict[str, Any]] = []
    for name in CASES:
        if arguments.cases and not any(part in name for part in arguments.cases):
            continue
        row = {"case": name, "rows": arguments.rows, "schedule": arguments.schedule}
        row |= measure(name, arguments.rows, arguments.schedule, arguments.peer)
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        if arguments.save:
            save_rows("halide", context, rows, ("case", "rows", "schedule"))
    for key in ("halide over eager", "halide over ours"):
        print(f"geomean {key}: {statistics.geometric_mean(row[key] for row in rows):.2f}")


if __name__ == "__main__":
    main()
