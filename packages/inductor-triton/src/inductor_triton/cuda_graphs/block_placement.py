"""Plans the addresses of a recording's memory blocks.

An allocator that searches for free memory at each request leaves gaps. A recording makes the same
requests in the same order each time, so a second capture can give each block the address that a
plan computed for it.

The addresses still come from the allocator, which returns the smallest free block that is large
enough: before each call, fillers occupy all free memory except the holes that the call is to fill.
If the allocator chooses another block, the only cost is wasted memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

SMALL = 1 << 20
"""The allocator serves requests of at most this many bytes from separate segments, and does not
split off a remainder this small.
"""
UNIT = 2 << 20
ROUND = 512


@dataclass(frozen=True, slots=True)
class Block:
    """A block of ``size`` bytes, allocated by call ``first`` and freed no earlier than the call
    after ``last``.
    """

    size: int
    first: int
    last: int

    def meets(self, other: Block) -> bool:
        """Whether both blocks are in use at the same time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Placed:
    """A block at offset ``start``. ``room`` is the distance to the next offset that may be in use;
    ``alone``: whether its call allocates no other block.
    """

    block: Block
    start: int
    room: int
    alone: bool = True

    @property
    def hole(self) -> int:
        """The end of its hole. If a call allocates several blocks, each hole has exactly the size
        of its block, so that the allocator can tell them apart.
        """
        return self.start + (self.room if self.alone else self.block.size)

    @property
    def end(self) -> int:
        """The offset where the remainder that the allocator splits off begins."""
        return self.hole if self.room - self.block.size <= SMALL else self.start + self.block.size


def blocks_of(events: Sequence[tuple[bool, int, int]], marks: Sequence[int]) -> list[Block]:
    """The large blocks of a trace of events (allocated, address, size); ``marks``: the number of
    events before each call.
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
    """Assigns each block an offset, and returns the placed blocks and the total size in bytes.

    The largest blocks come first; each gets the lowest free offset. Blocks that one call allocates
    are not adjacent, because their holes would merge into one.
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
    # otherwise the allocator would put the block into the hole at the end
    rest = ((p.hole - p.start < p.room <= p.block.size + SMALL) * UNIT for p in placed)
    return placed, max((p.start + p.room + more for p, more in zip(placed, rest)), default=0)


@dataclass(slots=True)
class Placer:
    """Prepares an empty pool's memory before each call.

    ``empty`` allocates an object that occupies the given number of bytes while it is alive.
    ``held`` returns the bytes that the allocator has reserved. ``follows`` tells whether the
    allocator follows the plan, which means that the fillers reserve no more memory; once it
    doesn't, the placer stops intervening.
    """

    placed: Sequence[Placed]
    total: int
    empty: Callable[[int], object]
    held: Callable[[], int]
    fillers: list[object] = field(default_factory=list)
    follows: bool = False

    def start(self) -> None:
        """Allocates the memory that all blocks share."""
        self.fillers = [self.empty(self.total)]
        self.follows = True

    def before(self, call: int) -> None:
        """Leaves holes for the blocks that the call will allocate, and no other free memory."""
        holes = sorted((p for p in self.placed if p.block.first == call), key=lambda p: p.start)
        if not holes or not self.follows:
            return
        before = self.held()
        self.fillers.clear()
        kept: list[object] = []
        filled: list[object] = []
        # The smallest region first: that makes it the smallest one large enough for each of its
        # parts.
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
        """The regions that are unused when the call begins."""
        busy = sorted((p.start, p.end) for p in self.placed if p.block.first < call <= p.block.last)
        start = 0
        for begin, end in (*busy, (self.total, self.total)):
            if begin > start:
                yield start, begin
            start = max(start, end)


def with_hook(function: FunctionType, hook: Callable[[], None]) -> Callable[..., Any]:
    """A copy of a host function that calls ``hook`` before each of its calls."""

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
