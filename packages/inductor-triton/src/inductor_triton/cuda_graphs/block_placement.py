"""Where the blocks of a recording lie. An allocator that looks for room when it is asked leaves
gaps; a recording asks for the same in the same order each time, so that a second capture can give
each block the place that a plan found for it.

The allocator gives the places itself: it takes the smallest block that is large enough, and before
a call all free memory is taken by fillers, except the holes that the call is to fill. Where it does
otherwise, memory is lost, no more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

SMALL = 1 << 20
"""The allocator takes blocks of at most so many bytes from elsewhere, and splits none for less."""
UNIT = 2 << 20
ROUND = 512


@dataclass(frozen=True, slots=True)
class Block:
    """Memory of ``size`` bytes, asked for by call ``first``, not free before the call after
    ``last``.
    """

    size: int
    first: int
    last: int

    def meets(self, other: Block) -> bool:
        """Whether both are needed at once."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Placed:
    """A block at ``start``; ``room``: to the next place in use; ``alone``: its call asks for no
    other.
    """

    block: Block
    start: int
    room: int
    alone: bool = True

    @property
    def hole(self) -> int:
        """Where its hole ends. Holes of one call are as large as their blocks, by which the
        allocator tells them apart.
        """
        return self.start + (self.room if self.alone else self.block.size)

    @property
    def end(self) -> int:
        """Where memory that the allocator splits off begins."""
        return self.hole if self.room - self.block.size <= SMALL else self.start + self.block.size


def blocks_of(events: Sequence[tuple[bool, int, int]], marks: Sequence[int]) -> list[Block]:
    """The large blocks of a trace of events (allocated, address, size); ``marks``: how many there
    were before each call.
    """
    alive: dict[int, tuple[int, int]] = {}
    found: list[Block] = []
    for number, (allocated, address, size) in enumerate(events):
        call = max(bisect_right(marks, number) - 1, 0)
        if allocated:
            alive[address] = size, call
        elif address in alive:
            size, first = alive.pop(address)
            found.append(Block(size, first, call))
    found += [Block(size, first, len(marks)) for size, first in alive.values()]
    return [Block(-(-b.size // ROUND) * ROUND, b.first, b.last) for b in found if b.size > SMALL]


def place(blocks: Sequence[Block]) -> tuple[list[Placed], int]:
    """A place for each block, the largest first at the lowest one that is free, and the bytes of
    all. What one call asks for does not lie side by side, where it would be one hole.
    """
    together = [block.first for block in blocks]
    placed: list[Placed] = []
    for block in sorted(blocks, key=lambda b: (-b.size, b.first)):
        room = -(-block.size // UNIT) * UNIT
        alone = together.count(block.first) == 1
        need = room + UNIT * (not alone)
        start = 0
        for other in sorted((p for p in placed if p.block.meets(block)), key=lambda p: p.start):
            if start + need <= other.start:
                break
            start = max(start, other.start + other.room + UNIT * (not other.alone))
        placed.append(Placed(block, start, room, alone))
    # else the hole at the end takes it
    rest = ((p.hole - p.start < p.room <= p.block.size + SMALL) * UNIT for p in placed)
    return placed, max((p.start + p.room + more for p, more in zip(placed, rest)), default=0)


@dataclass(slots=True)
class Placer:
    """Prepares memory before each call, in a pool that is empty. ``empty`` makes something that
    holds so many bytes while it lives; ``held``: the bytes that the allocator has got, which say
    whether it ``follows``: fillers need no more. Where it does not, it is left alone.
    """

    placed: Sequence[Placed]
    total: int
    empty: Callable[[int], object]
    held: Callable[[], int]
    fillers: list[object] = field(default_factory=list)
    follows: bool = False

    def start(self) -> None:
        """Takes the memory that all share."""
        self.fillers = [self.empty(self.total)]
        self.follows = True

    def before(self, call: int) -> None:
        """Leaves holes for what the call will ask for, and nothing else."""
        holes = sorted((p for p in self.placed if p.block.first == call), key=lambda p: p.start)
        if not holes or not self.follows:
            return
        before = self.held()
        self.fillers.clear()
        kept: list[object] = []
        filled: list[object] = []
        # The smallest region first: it is the smallest that is large enough for each of its parts.
        for start, end in sorted(
            self._free(call), key=lambda region: (region[1] - region[0], region[0])
        ):
            for hole in (p for p in holes if start <= p.start < end):
                self._fill(filled, start, hole.start)
                self._fill(kept, hole.start, hole.hole)
                start = hole.hole
            self._fill(filled, start, end)
        self.fillers = filled
        if self.held() > before:
            self.fillers, self.follows = [], False

    def _fill(self, fillers: list[object], start: int, end: int) -> None:
        if end - start > SMALL:
            fillers.append(self.empty(end - start))

    def _free(self, call: int) -> Iterator[tuple[int, int]]:
        """What nobody uses when the call begins."""
        busy = sorted((p.start, p.end) for p in self.placed if p.block.first < call <= p.block.last)
        start = 0
        for begin, end in (*busy, (self.total, self.total)):
            if begin > start:
                yield start, begin
            start = max(start, end)


def with_hook(function: FunctionType, hook: Callable[[], None]) -> Callable[..., Any]:
    """A host function that calls ``hook`` before each of its calls."""

    def hooked(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: object, **kwargs: object) -> Any:
            hook()
            return call(*args, **kwargs)

        return run

    names: Mapping[str, Any] = function.__globals__
    own = {
        name: hooked(value) if callable(value) and not isinstance(value, type) else value
        for name, value in names.items()
    }
    return FunctionType(function.__code__, own)
