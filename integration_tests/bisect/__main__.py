"""Plants the bugs one by one, searches for each, and says what was found.

usage: python -m integration_tests.bisect [--only TEXT] [--jobs N] [--check] [-o DIRECTORY]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .planted import PLANTED
from .trial import Outcome, try_bug

LEAST = {"is_layer_right": 57, "is_decision_right": 50, "replays": 50, "is_small": 40}
"""Of sixty."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="bugs whose name or layer has this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="fail below the numbers in LEAST")
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    root = chosen.output or Path(tempfile.mkdtemp())
    bugs = [b for b in PLANTED if chosen.only in f"{b.layers} {b.name} {b.module}"]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        outcomes = list(pool.map(lambda bug: _said(try_bug(bug, root)), bugs))
    count = {
        name: sum(getattr(outcome, name) for outcome in outcomes)
        for name in ("is_layer_right", "is_decision_right", "replays", "is_small")
    }
    print(f"{len(outcomes)} bugs: {count}")
    return int(chosen.check and any(count[name] < least for name, least in LEAST.items()))


def _said(outcome: Outcome) -> Outcome:
    print(outcome, flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
