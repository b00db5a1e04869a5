"""Files that a program can do without: dumps, and choices of tuning."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from loopir.errors import StoreWarning

_warned: set[str] = set()


@contextmanager
def optional_files(what: str) -> Iterator[None]:
    """Gives one warning for each ``what`` if a file can't be written within the block."""
    try:
        yield
    except OSError as error:
        if what not in _warned:
            _warned.add(what)
            warnings.warn(
                f"{what} can't be written: {error}. The program goes on without it; name a "
                f"directory that you can write to.",
                StoreWarning,
                stacklevel=3,
            )
