"""Generated programs against eager mode.

    python -m integration_tests.programs --seeds 0:20000 --backend eager --jobs 2
    python -m integration_tests.programs --shrink 17

Programs run in processes of their own, so that a crash is one program's difference.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CHUNK = 250


def main() -> int:
    """Parses options; 1 when something differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:100", help="FIRST:END")
    parser.add_argument(
        "--backend", default="eager", help="'eager', or 'inductor' for the whole stack"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=40, help="seconds for one program")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start no more programs after that"
    )
    parser.add_argument(
        "--shrink", type=int, metavar="SEED", help="print the smallest program that still differs"
    )
    parser.add_argument("--show", type=int, metavar="SEED", help="print a seed's program")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.show is not None:
        from integration_tests.programs.generate import generate

        print(generate(options.show))
        return 0
    if options.shrink is not None:
        from integration_tests.programs.shrink import shrink_seed

        print(shrink_seed(options.shrink, options.backend))
        return 0
    first, end = map(int, options.seeds.split(":"))
    return work(first, end, options) if options.worker else supervise(first, end, options)


def work(first: int, end: int, options: argparse.Namespace) -> int:
    """A worker: a line before each program, and its source and differences when there are any."""
    from integration_tests.programs.generate import generate
    from integration_tests.programs.run import OutOfTime, check

    def stop(*_: Any) -> None:
        raise OutOfTime(f"over {options.timeout} s")

    signal.signal(signal.SIGALRM, stop)
    for seed in range(first, end):
        print(f"@begin {seed}", flush=True)
        signal.alarm(options.timeout)
        try:
            found = check(seed, options.backend)
        except BaseException as error:
            found = [f"{type(error).__name__}: {error}"]
        signal.alarm(0)
        if found:
            print(f"@differs {seed}", *found, "", generate(seed), sep="\n", flush=True)
    return 0


def supervise(first: int, end: int, options: argparse.Namespace) -> int:
    """Runs chunks of seeds in workers and counts."""
    start, differing, done = time.monotonic(), [], 0

    def chunk(begin: int, stop: int) -> tuple[int, list[int]]:
        ran, bad = 0, []
        while begin < stop and time.monotonic() - start < options.seconds:
            command = [sys.executable, "-m", __package__, "--worker", "--seeds", f"{begin}:{stop}"]
            command += ["--backend", options.backend, "--timeout", str(options.timeout)]
            result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            begun = [
                int(line.split()[1])
                for line in result.stdout.splitlines()
                if line.startswith("@begin ")
            ]
            bad += [
                int(line.split()[1])
                for line in result.stdout.splitlines()
                if line.startswith("@differs ")
            ]
            print(
                *(line for line in result.stdout.splitlines() if not line.startswith("@begin ")),
                sep="\n",
                flush=True,
            )
            ran += len(begun)
            last = begun[-1] if begun else begin
            if result.returncode:
                bad.append(last)
                print(f"@differs {last}\nworker ended with {result.returncode}", flush=True)
            begin = last + 1
        return ran, bad

    size = CHUNK if options.backend == "eager" else CHUNK // 10
    with ThreadPoolExecutor(options.jobs) as pool:
        for ran, bad in pool.map(
            lambda begin: chunk(begin, min(begin + size, end)), range(first, end, size)
        ):
            done += ran
            differing += bad
    print(f"{done} programs, {len(differing)} differ: {differing}")
    return int(bool(differing))


if __name__ == "__main__":
    raise SystemExit(main())
