"""Rows of a benchmark as processes of their own, spread over devices."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from benchmarks.turns import SECONDS, TURN


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows run: a device (empty: the current one), what measuring there takes, and cores."""

    device: str
    lock: str
    cores: tuple[int, ...] = ()

    def command(self) -> list[str]:
        """What a command runs under."""
        return ["taskset", "-c", ",".join(map(str, self.cores))] if self.cores else []


def own_process(arguments: Sequence[str], place: Place, timeout: float) -> dict[str, Any]:
    """The object that ``python -m ARGUMENTS`` prints as JSON, run with caches of its own;
    ``failed`` says why there is none. It may compile for ``timeout`` seconds, and take twice as
    long with waiting and measuring.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-models-") as caches:
        os.chmod(caches, 0o700)
        own = {
            "STRATA_CACHE_DIR": f"{caches}/ours",
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/theirs",
            TURN: place.lock,
            SECONDS: str(int(timeout)),
        }
        own |= {"CUDA_VISIBLE_DEVICES": place.device} if place.device else {}
        command = [*place.command(), sys.executable, "-m", *arguments]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=2 * timeout,
                env={**os.environ, **own},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"took more than {2 * timeout} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"failed": " ".join((done.stderr or done.stdout).split())[-300:]}
    return json.loads(lines[-1])


def places_of(gpus: int, directory: str) -> list[Place]:
    if gpus == 1:
        return [Place("", f"{directory}/lock")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // gpus)
    devices = enumerate(visible.split(",")[:gpus])
    return [
        Place(device, f"{directory}/lock{i}", tuple(cores[share * i : share * (i + 1)]))
        for i, device in devices
    ]


def spread(
    tasks: Sequence[Sequence[str]], options: argparse.Namespace
) -> Iterator[tuple[Sequence[str], dict[str, Any]]]:
    """What ``own_process`` gives for each task, as they are done; a device that is free takes the
    next one.
    """
    with tempfile.TemporaryDirectory() as directory:
        places = [
            place for _ in range(options.jobs) for place in places_of(options.gpus, directory)
        ]
        free: SimpleQueue[Place] = SimpleQueue()
        for place in places:
            free.put(place)

        def done(task: Sequence[str]) -> tuple[Sequence[str], dict[str, Any]]:
            place = free.get()
            try:
                return task, own_process(task, place, options.timeout)
            finally:
                free.put(place)

        with ThreadPoolExecutor(len(places)) as pool:
            for future in as_completed([pool.submit(done, task) for task in tasks]):
                yield future.result()
