"""First calls in new processes beyond eager's first call: with a warm cache, and of saved programs on
an empty one; and processes that start together on an empty cache.

usage: python -m benchmarks.first_calls [--rounds 3] [--ranks 10]

A 12-layer GPT and ResNet-50 on the CPU, in inference and training (forward and backward). ``loads``
are the seconds of ``compile()`` or ``load()`` before the call. Of ranks: how many compiled, the
libraries in the cache, and the processor time beyond that of warm starts, over that of one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torchstrata

from benchmarks.autograd import gpt_and_batch, resnet_and_batch

MODELS = {"gpt": gpt_and_batch, "resnet50": resnet_and_batch}
MODES = ("inference", "training")


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call, and its result."""
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def first_call(task: str, name: str, mode: str, file: Path) -> dict[str, Any]:
    """What one process does: fill the cache and the file, or the first call with either."""
    model, inputs = MODELS[name]()
    model.train(mode == "training")

    def step(call: Callable[..., Any]) -> None:
        result = call(*inputs)
        if mode == "training":
            result.backward()
            model.zero_grad()

    with torch.set_grad_enabled(mode == "training"):
        eager, _ = seconds(lambda: step(model))
        if task == "load":
            loads, call = seconds(lambda: torchstrata.load(file, model))
        else:
            loads, call = seconds(lambda: torchstrata.compile(model))
        first, _ = seconds(lambda: step(call))
        if task == "fill":
            call.precompile(*inputs)
            torchstrata.save(call, file)
    misses = torchstrata.counters["cache_misses"]
    return {"eager": eager, "loads": loads, "first": first, "misses": misses}


@contextlib.contextmanager
def started(cache: Path, task: str, name: str, mode: str) -> Iterator[subprocess.Popen[str]]:
    """A new process with this cache."""
    command = ["-W", "ignore", "-m", "benchmarks.first_calls", "--one", task, name, mode]
    threads = {"OMP_NUM_THREADS": "1"} if task == "rank" else {}  # idle threads would spin
    environment = os.environ | {"STRATA_CACHE_DIR": str(cache)} | threads
    with subprocess.Popen(
        [sys.executable, *command, str(cache.parent / "program.strata")],
        stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        yield process


def run(count: int, *arguments: Any) -> tuple[float, list[dict[str, Any]]]:
    """Processor seconds and results of processes that start together."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(started(*arguments)) for _ in range(count)]
        rows = [json.loads(process.communicate()[0]) for process in processes]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, rows


def compare_ranks(count: int) -> None:
    """Prints what processes cost that start together on an empty cache."""
    with tempfile.TemporaryDirectory() as directory:
        one, together = Path(directory) / "one", Path(directory) / "ranks"
        alone, _ = run(1, one, "rank", "gpt", "training")
        again = statistics.median(run(1, one, "rank", "gpt", "training")[0] for _ in range(3))
        used, rows = run(count, together, "rank", "gpt", "training")
        compiled = sum(row["misses"] > 1 for row in rows)
        libraries = len(list(together.glob("??/*.so")))
        ratio = (used - count * again) / (alone - again)
        print(f"{count} ranks: {compiled} compiled {libraries} libraries, {ratio:.1f} times "
              f"the processor time of one compilation ({alone - again:.1f} s)")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=10)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        task, name, mode, file = chosen.one
        print(json.dumps(first_call(task, name, mode, Path(file))))
        return
    for name in MODELS:
        for mode in MODES:
            with tempfile.TemporaryDirectory() as directory:
                warm = Path(directory) / "warm"
                run(1, warm, "fill", name, mode)
                for task in ("warm", "load"):
                    rows = []
                    for number in range(chosen.rounds):
                        cache = warm if task == "warm" else warm.with_name(f"empty{number}")
                        rows += run(1, cache, task, name, mode)[1]
                    over = statistics.median(row["first"] - row["eager"] for row in rows)
                    loads = statistics.median(row["loads"] for row in rows)
                    misses = sum(row["misses"] for row in rows)
                    print(f"{name} {mode} {task}: first call {over:.2f} s over eager's, "
                          f"loads {loads:.2f} s, {misses} misses", flush=True)  # fmt: skip
    compare_ranks(chosen.ranks)


if __name__ == "__main__":
    main()
