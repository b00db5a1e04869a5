"""Alternating measurement: several callables, the same process, medians."""

from __future__ import annotations

import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


def alternate(
    calls: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 30,
    seconds: float = 0.02,
    quantile: float = 0.5,
    clock: Callable[[], float] | None = None,
) -> dict[str, float]:
    """Median seconds per call of each (or another quantile), measured in turns so that a noisy
    moment hits all of them.

    ``clock``: wall time by default; on a busy machine the processor time of a single thread says
    more.
    """
    clock = clock or time.perf_counter
    repeats = {}
    for name, call in calls.items():
        call()
        started = clock()
        call()
        repeats[name] = max(1, int(seconds / max(clock() - started, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in calls.items():
                count = repeats[name]
                started = clock()
                for _ in range(count):
                    call()
                samples[name].append((clock() - started) / count)
    finally:
        gc.enable()
    if quantile == 0.5:
        return {name: statistics.median(values) for name, values in samples.items()}
    return {name: sorted(values)[int(quantile * rounds)] for name, values in samples.items()}


def counts_of_torch_compile() -> str:
    """Its graphs and breaks so far."""
    from torch._dynamo.utils import counters

    return f"{counters['stats']['unique_graphs']}/{sum(counters['graph_break'].values())}"


def single_thread_clock() -> Callable[[], float]:
    """Processor time when torch uses one thread, else wall time."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def awaited_clock() -> float:
    """Wall time once the CUDA device has done all its work."""
    torch.cuda.synchronize()
    return time.perf_counter()


def save_rows(
    suite: str, context: Mapping[str, str], rows: Sequence[Mapping[str, Any]], key: Sequence[str]
) -> None:
    """Writes rows, each with its commit, to ``results/SUITE.json``; rows of an earlier run with
    another ``key`` stay.
    """
    path = Path(__file__).parent / "results" / f"{suite}.json"
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    new = ({**row, "commit": context["commit"]} for row in rows)
    merged = {tuple(row[name] for name in key): row for row in (*kept, *new)}
    path.write_text(
        json.dumps({"environment": dict(context), "rows": list(merged.values())}, indent=1) + "\n"
    )


def environment() -> dict[str, str]:
    """Commit (``STRATA_COMMIT`` where there is no repository), versions and device of a result
    row.
    """
    commit = os.environ.get("STRATA_COMMIT", "")
    if not commit and shutil.which("git"):
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
    return {
        "commit": commit or "unknown",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }


def print_rows(
    suite: str, rows: Iterable[Mapping[str, Any]], key: Sequence[str], save: bool
) -> None:
    """Prints rows as they come and saves each at once, since a run may be cut short."""
    for row in rows:
        print(*(f"{value!s:>12}" for value in row.values()), flush=True)
        if save:
            save_rows(suite, environment(), [row], key)
