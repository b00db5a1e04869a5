"""Finds periodic stretches in a sequence of numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MIN_PERIOD = 8
"""Shorter periods save less than a call costs."""
MIN_COUNT = 3
MAX_PERIODS = 12
"""How many periods are tried."""


@dataclass(frozen=True, slots=True)
class Run:
    """``length`` numbers from ``start`` on, of which each equals the one ``period`` before it."""

    start: int
    period: int
    length: int

    @property
    def saved(self) -> int:
        """How many of the numbers repeat others."""
        return (self.length // self.period - 1) * self.period


def find_runs(numbers: Sequence[int]) -> list[Run]:
    """Runs of at least MIN_COUNT periods that do not overlap, those that save most first. The time
    is linear: periods are the most frequent distances between neighbouring equal numbers.
    """
    distances: Counter[int] = Counter()
    last: dict[int, int] = {}
    for position, number in enumerate(numbers):
        if number in last:
            distances[position - last[number]] += 1
        last[number] = position
    frequent = [(-n, period) for period, n in distances.items() if period >= MIN_PERIOD and n > 1]
    periods = [period for _, period in sorted(frequent)[:MAX_PERIODS]]
    found = [run for period in periods for run in _runs_of(numbers, period)]
    chosen: list[Run] = []
    for run in sorted(found, key=lambda run: (-run.saved, run.period, run.start)):
        if all(_are_apart(run, other) for other in chosen):
            chosen.append(run)
    return chosen


def _runs_of(numbers: Sequence[int], period: int) -> Iterator[Run]:
    start = 0
    for position in range(len(numbers) - period + 1):
        after = position + period
        if after < len(numbers) and numbers[position] == numbers[after]:
            continue
        if after - start >= MIN_COUNT * period:
            yield Run(start, period, after - start)
        start = position + 1


def _are_apart(a: Run, b: Run) -> bool:
    return a.start + a.length <= b.start or b.start + b.length <= a.start
