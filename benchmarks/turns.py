"""Processes that share a device: many may compile at once, measuring is alone."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

TURN = "BENCHMARK_TURN_LOCK"
"""The environment variable that names the lock's file; without it, nobody waits."""
SECONDS = "BENCHMARK_TURN_SECONDS"
"""The environment variable that says how long a turn to compile may take, so that those who wait to
measure don't fail with one that is too slow.
"""


@contextmanager
def turn(exclusive: bool) -> Iterator[None]:
    """The right to compile, or to measure (``exclusive``), which lasts as long as the context.

    Raises:
        TimeoutError: compiling takes longer than it may.
    """
    path = os.environ.get(TURN)
    if path is None:
        yield
        return
    with open(path, "w") as file:
        # who waits to measure keeps others from starting to compile
        with open(f"{path}.gate", "w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        signal.signal(signal.SIGALRM, _too_slow)
        signal.alarm(0 if exclusive else int(os.environ.get(SECONDS, "0")))
        try:
            yield
        finally:
            signal.alarm(0)


def _too_slow(number: int, frame: object) -> None:
    raise TimeoutError(f"compiling took more than {os.environ[SECONDS]} s")
