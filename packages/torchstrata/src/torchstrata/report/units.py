"""Numbers with units, for people."""

from __future__ import annotations

_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def bytes_text(count: float) -> str:
    """Such as ``1.5 MiB``."""
    for unit, name in _SIZES:
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} B"


def seconds_text(seconds: float | None) -> str:
    """Such as ``12.3 ms``; empty for None."""
    if seconds is None:
        return ""
    for unit, name in _TIMES:
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.0f} ns"


def file_name(path: str) -> str:
    """The last part of a path, for places."""
    return path.rpartition("/")[2]


def count_text(count: int, singular: str, plural: str = "") -> str:
    """Such as ``2 graphs``."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"
