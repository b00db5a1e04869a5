"""One process at a time makes the same thing; the others wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

WAIT_SECONDS = 300.0
"""How long a process waits for another before it goes on alone."""


@contextmanager
def exclusive(path: Path, seconds: float | None = None) -> Iterator[bool]:
    """Within, others that hold the same lock file wait, at most ``seconds`` (WAIT_SECONDS). Yields
    whether this one has waited: what it would make may be there now.

    A process that ends lets go. Where the file can't be made nobody waits. A thread may hold a lock
    that it holds already.
    """
    lock, has_waited = FileLock(path, is_singleton=True), False
    with suppress(OSError):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            has_waited = True
            with suppress(Timeout):
                lock.acquire(timeout=WAIT_SECONDS if seconds is None else seconds)
    try:
        yield has_waited
    finally:
        lock.release()
