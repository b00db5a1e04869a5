"""Processes that share a device: many may compile at once, measuring is alone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

TURN = "BENCHMARK_TURN_LOCK"
"""The environment variable that names the lock's file; without it, nobody waits."""


@contextmanager
def turn(exclusive: bool) -> Iterator[None]:
    """The right to compile, or to measure (``exclusive``), which lasts as long as the context."""
    path = os.environ.get(TURN)
    if path is None:
        yield
        return
    with open(path, "w") as file:
        # who waits to measure keeps others from starting to compile
        with open(f"{path}.gate", "w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
