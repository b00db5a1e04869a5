"""The entries in a region's caches, for messages, tests and recompile limits.

The entries themselves live in C (``hook.Region``): per region and code object an ordered list, most
recently used first.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType

from bytecode_dynamo.hook.frame_hook import Entry, Region


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The state of one region's cache for one code object."""

    code: CodeType
    entries: tuple[Entry, ...]
    skipped: bool

    @property
    def hits(self) -> int:
        """How often an entry was used."""
        return sum(entry.hits for entry in self.entries)


def report(region: Region) -> list[CacheReport]:
    """One report for each code object that the region has met, in no particular order."""
    return [
        CacheReport(code, region.entries(code), region.is_skipped(code)) for code in region.codes()
    ]
