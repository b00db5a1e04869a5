"""Shared by the package's tests."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest

ROUNDS = 3


@pytest.fixture
def leaked_blocks() -> Callable[[Callable[[], object]], int]:
    """The change in allocated blocks that a function makes each time, counted after collections.

    What leaks, or is released too often, recurs in every round. Garbage of earlier tests may go in
    any of them, but not in all.
    """

    def measure(run: Callable[[], object]) -> int:
        changes = []
        for _ in range(ROUNDS):
            gc.collect()
            before = sys.getallocatedblocks()
            run()
            gc.collect()
            changes.append(sys.getallocatedblocks() - before)
        return min(changes, key=abs)

    return measure
