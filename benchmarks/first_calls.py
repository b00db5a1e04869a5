"""First calls in new processes beyond eager's first call: with a warm cache, and of saved programs on
an empty one; and processes that start together on an empty cache.

usage: python -m benchmarks.first_calls [--rounds 3] [--ranks 10]

A 12-layer GPT and ResNet-50 on the CPU, in inference and training (forward and backward). ``loads``
are the seconds of ``compile()`` or ``load()`` before the call. Of ranks: how many compiled, the
libraries in the cache, and the processor time beyond that of as many warm starts, over that of one.
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


def processor_seconds() -> float:
    """Processor seconds of this process and the compilers that it ran."""
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in each)


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
        used = processor_seconds()
        first, _ = seconds(lambda: step(call))
        used = processor_seconds() - used
        if task == "fill":
            call.precompile(*inputs)
            torchstrata.save(call, file)
    misses = torchstrata.counters["cache_misses"]
    return {"eager": eager, "loads": loads, "first": first, "used": used, "misses": misses}


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


def run(count: int, *arguments: Any) -> list[dict[str, Any]]:
    """Results of processes that start together."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(started(*arguments)) for _ in range(count)]
        return [json.loads(process.communicate()[0]) for process in processes]


def compare_ranks(count: int, rounds: int = 3) -> None:
    """Prints what the first calls of processes cost that start together on an empty cache.

    Those of as many that start together on a warm one are subtracted: processes that share cores
    take more processor time, whatever they do.
    """
    alone, together, compiled, libraries = [], [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            for number, totals in ((1, alone), (count, together)):
                cache = Path(directory) / str(number)
                cold, warm = (run(number, cache, "rank", "gpt", "training") for _ in range(2))
                totals.append(sum(row["used"] for row in cold) - sum(row["used"] for row in warm))
            compiled.append(sum(row["misses"] > 1 for row in cold))
            libraries.append(len(list(cache.glob("??/*.so"))))
    used, own = statistics.median(together), statistics.median(alone)
    print(f"{count} ranks: {max(compiled)} compiled {max(libraries)} libraries, {used / own:.1f} "
          f"times the processor time of one compilation ({own:.1f} s)")  # fmt: skip


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
                        rows += run(1, cache, task, name, mode)
                    over = statistics.median(row["first"] - row["eager"] for row in rows)
                    loads = statistics.median(row["loads"] for row in rows)
                    misses = sum(row["misses"] for row in rows)
                    print(f"{name} {mode} {task}: first call {over:.2f} s over eager's, "
                          f"loads {loads:.2f} s, {misses} misses", flush=True)  # fmt: skip
    compare_ranks(chosen.ranks, chosen.rounds)


if __name__ == "__main__":
    main()
