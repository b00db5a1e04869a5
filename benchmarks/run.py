"""Runs benchmarks next to torch.compile in this process and prints a table.

usage: python benchmarks/run.py [SUITE...=overhead compile_time] [--save]
suites: autograd, capture, primops, lowering, overhead, compile_time, startup, steady
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # not this folder: its modules are named like packages

from benchmarks import autograd, capture, compile_time, lowering, overhead, primops, startup, steady
from benchmarks.measure import environment

SUITES = {
    "autograd": autograd.CASES,
    "capture": capture.CASES,
    "primops": primops.CASES,
    "lowering": lowering.CASES,
    "overhead": overhead.CASES,
    "compile_time": compile_time.CASES,
    "startup": startup.CASES,
    "steady": steady.CASES,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="*", default=["overhead", "compile_time"], choices=SUITES)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/<suite>.json")
    arguments = parser.parse_args()
    context = environment()
    print("  ".join(f"{name} {value}" for name, value in context.items()))
    for suite in arguments.suites:
        rows = []
        for case in SUITES[suite]:
            row = case()
            rows.append({"case": case.__name__, **row})
            print(
                f"{suite:14s} {case.__name__:28s} "
                + "   ".join(f"{name} {value}" for name, value in row.items()),
                flush=True,
            )
        if arguments.save:
            path = Path(__file__).parent / "results" / f"{suite}.json"
            path.write_text(json.dumps({"environment": context, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
