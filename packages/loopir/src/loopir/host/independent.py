"""Which launches of a run may be at work at the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_BESIDE = 7
"""Launches before one that are looked at."""


@dataclass(slots=True)
class Accesses:
    """The memory that a launch reads and writes: names of tensors, and parts of the slab in
    bytes.
    """

    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    slab_reads: list[tuple[float, float]] = field(default_factory=list)
    slab_writes: list[tuple[float, float]] = field(default_factory=list)

    def add(self, tensor: str | None, part: tuple[float, float], writes: bool) -> None:
        """Adds a tensor, or, if that is None, a part of the slab."""
        if tensor is None:
            (self.slab_writes if writes else self.slab_reads).append(part)
        else:
            (self.writes if writes else self.reads).add(tensor)

    def meets(self, other: Accesses) -> bool:
        """Whether one of two launches writes what the other one touches."""
        return (
            not self.writes.isdisjoint(other.writes | other.reads)
            or not self.reads.isdisjoint(other.writes)
            or _overlap(self.slab_writes, (*other.slab_writes, *other.slab_reads))
            or _overlap(self.slab_reads, other.slab_writes)
        )


WHOLE_SLAB = (0.0, math.inf)


def _overlap(some: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)


def independent_before(launches: Sequence[Accesses]) -> list[int]:
    """For each launch, of how many launches right before it it is independent, at most
    MOST_BESIDE.
    """
    found = []
    for number, launch in enumerate(launches):
        count = 0
        while count < min(number, MOST_BESIDE) and not launch.meets(launches[number - count - 1]):
            count += 1
        found.append(count)
    return found
