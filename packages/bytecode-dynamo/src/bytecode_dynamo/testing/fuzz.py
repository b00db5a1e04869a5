"""Many generated programs in several processes: each chunk is a Hypothesis run of its own, whose
failure is shrunk and printed.

usage: python -m bytecode_dynamo.testing.fuzz [--programs 20000] [--jobs 2] [--shard 0/1] [--seed 0]
[--out DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from .oracle import check_source
from .strategies import arguments, programs

CHUNK = 125
HEALTH: Any = tuple(HealthCheck)


def drawn(count: int, number: int = 0) -> list[str]:
    """The texts of ``count`` random programs; ``number`` is the seed."""
    found: list[str] = []

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=HEALTH,
        phases=[Phase.generate],
    )
    @given(text=programs())
    def collect(text: str) -> None:
        found.append(text)

    collect()
    return found[:count]


def run_chunk(number: int) -> tuple[int, int, str]:
    """Run one chunk; returns its number, how many programs ran, and the smallest failing program
    with its error.
    """
    count, failing = 0, ""

    @seed(number)
    @settings(
        max_examples=CHUNK,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=HEALTH,
        phases=[Phase.generate, Phase.shrink],
    )
    @given(text=programs())
    def run(text: str) -> None:
        nonlocal count, failing
        count += 1
        try:
            check_source(text, arguments)
        except BaseException:
            failing = text
            raise

    try:
        run()
    except BaseException as error:
        error.__notes__ = []
        last = "".join(traceback.format_exception(error)[-9:])
        return number, count, f"{failing.partition('def f(x, log):')[2]}\n{last}"
    return number, count, ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--shard", default="0/1", help="K/N: only every Nth chunk, from the Kth on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, help="folder for failing programs (default: standard output)"
    )
    options = parser.parse_args()
    first, step = map(int, options.shard.split("/"))
    chunks = [options.seed * 1_000_000 + k for k in range(-(-options.programs // CHUNK))][
        first::step
    ]
    started, total, failures = time.time(), 0, 0
    done = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with (
        multiprocessing.get_context("spawn").Pool(options.jobs) as pool,
        contextlib.suppress(SystemExit, KeyboardInterrupt),
    ):
        for number, count, failure in pool.imap_unordered(run_chunk, chunks):
            total, done = total + count, done + 1
            if failure:
                failures += 1
                if options.out is None:
                    print(f"-- chunk {number}\n{failure}", flush=True)
                else:
                    options.out.mkdir(parents=True, exist_ok=True)
                    (options.out / f"{number}.txt").write_text(failure)
    seconds = time.time() - started
    print(
        f"{total} programs in {done} of {len(chunks)} chunks, {failures} chunks failed, "
        f"{seconds:.0f} s, "
        f"{1000 * seconds * options.jobs / max(total, 1):.0f} ms a program and process"
    )
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
