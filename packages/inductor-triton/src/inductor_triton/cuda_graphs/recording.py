"""A recorded program with the conditions of its replay, and what is known about similar calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from inductor_triton.launching.extension import loaded_extension

from .pool import Pool, Watch
from .results import Results

RECORDINGS = 4
"""The most recordings per host program and sizes; each further one needs twice as many unrecorded
calls before it.
"""
MOST_COPIES = 16
PLACE = 16
WARM_CALLS = 2
MANY_MOVES = 3
IDLE_CALLS = 16
"""Unrecorded calls after which an unused recording is dropped when another one is recorded."""


@dataclass(slots=True, eq=False)
class Recording:
    """A CUDA graph with the conditions of its replay.

    Attributes:
        graph: the graph.
        positions: positions of the inputs that must be at the addresses ``fixed``.
        fixed: their addresses, see ``places_of``.
        copied: the recording's own tensors for inputs that move, by position; of an expanded
            input each element once.
        written: positions of the copied inputs that are copied back after a replay.
        results: makes its results.
        watch: the blocks that must be idle before a replay.
        pool: its memory pool.
        given: the results of the forward recording whose private values it reads.
        used: the number of the call that last replayed it.
    """

    graph: torch.cuda.CUDAGraph
    positions: tuple[int, ...]
    fixed: bytes
    copied: tuple[tuple[int, torch.Tensor], ...]
    written: frozenset[int]
    results: Results
    watch: Watch
    pool: Pool
    given: weakref.ref[Results] | None
    used: int = 0

    def __del__(self) -> None:
        self.pool.leave(self.results.blocks)

    def fits(self, arguments: Sequence[object], given: Results | None) -> bool:
        """Whether the inputs are at the addresses that the graph expects."""
        if self.is_stale() or self.results.spent:
            return False
        if given is not (None if self.given is None else self.given()):
            return False
        extension = loaded_extension()
        if extension is not None:
            return extension.lie_at(arguments, self.positions, self.fixed)
        return places_of(arguments, self.positions) == self.fixed

    def is_stale(self) -> bool:
        """Whether the forward recording is gone, and with it the memory of the private values."""
        return self.given is not None and self.given() is None

    def replay(self, arguments: Sequence[object]) -> list[object]:
        """Replays the graph with ``arguments`` and returns its results."""
        for position, tensor in self.copied:
            copy_input(tensor, arguments[position])  # type: ignore[arg-type]
        self.graph.replay()
        for position, tensor in self.copied if self.written else ():
            if position in self.written:
                arguments[position].data.copy_(tensor)  # type: ignore[attr-defined]
        return self.results.make(arguments)

    def copy(self, positions: set[int], limit: int) -> bool:
        """Copies these results out from now on, if they are few and small; returns whether it
        does.
        """
        wanted = [self.results.every[i] for i in positions]
        size = sum(size_of(r.block.owner) for r in wanted if r.block is not None)
        if (
            len(wanted) > MOST_COPIES
            or size > limit
            or not all(result.copyable() for result in wanted)
        ):
            return False
        for result in wanted:
            result.copied = True
        self.results.settle()
        return bool(wanted)


@dataclass(slots=True)
class CallPattern:
    """What is known about calls with the same sizes on the same stream.

    Attributes:
        pool: the shared memory pool; None once each recording gets its own.
        addresses: the tensors' addresses in the last call.
        moves: for each tensor, how often its address has changed.
        fixed: positions of the inputs whose addresses recordings rely on.
        calls: the number of calls so far.
        seen: the number of the program's call that was the last with these sizes.
        made: the number of recordings made so far.
        due: the number of the first call that may make the next recording.
        moved: the tensors whose addresses changed last.
        moving: the tensors whose addresses are expected to change at every call.
        copied: the results that callers keep.
        recordings: the recordings in use.
        waited: how many calls had moving inputs too large to copy.
    """

    pool: Pool | None
    addresses: bytes
    moves: list[int]
    fixed: tuple[int, ...]
    calls: int = 0
    seen: int = 0
    made: int = 0
    due: int = 0
    moved: frozenset[int] = frozenset()
    moving: frozenset[int] = frozenset()
    copied: set[int] = field(default_factory=set)
    recordings: list[Recording] = field(default_factory=list)
    waited: int = 0

    def notice(self, addresses: bytes, small: Callable[[int], bool]) -> bool:
        """Compares a call with the previous one; returns whether they look alike: the only tensors
        that moved are those that move at every call. ``small``: whether a tensor is small.
        """
        self.calls += 1
        before, count = self.addresses, len(self.moves)
        moved = (
            [
                i
                for i in range(count)
                if before[PLACE * i : PLACE * (i + 1)] != addresses[PLACE * i : PLACE * (i + 1)]
            ]
            if before != addresses
            else []
        )
        for i in moved:
            self.moves[i] += 1
        always = {
            i
            for i in moved
            if i in self.moved or self.moves[i] >= MANY_MOVES or (self.made and small(i))
        }
        self.addresses, self.moved = addresses, frozenset(moved)
        self.moving |= always
        return self.calls > WARM_CALLS and self.moving.issuperset(moved)

    def count(self) -> None:
        """Counts a new recording."""
        self.made += 1
        self.due = self.calls + (
            IDLE_CALLS << (self.made - RECORDINGS) if self.made >= RECORDINGS else 0
        )

    def forget_moves(self) -> None:
        """Forgets which addresses have changed: too much was in them."""
        self.waited += 1
        self.moves, self.moving = [0] * len(self.moves), frozenset()

    def keep(self, fixed: tuple[int, ...]) -> None:
        """Makes recordings rely on the addresses of the inputs ``fixed``. Drops recordings that
        rely on others, that were not used for long, or whose private values are spent or gone.
        """
        kept = self.recordings if fixed == self.fixed else []
        self.fixed = fixed
        self.recordings = [
            r
            for r in kept
            if self.calls - r.used < IDLE_CALLS and not r.results.spent and not r.is_stale()
        ]


def copy_input(target: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies an input; of an expanded one only what ``target`` holds of it."""
    if target.shape != tensor.shape:
        tensor = tensor.as_strided(target.shape, target.stride())
    target.copy_(tensor)


def places_of(arguments: Sequence[object], positions: tuple[int, ...]) -> bytes:
    """The addresses of the arguments at ``positions``, ``PLACE`` bytes each."""
    extension = loaded_extension()
    if extension is not None:
        return extension.places(arguments, positions)
    return b"".join(arguments[i].data_ptr().to_bytes(PLACE, "little") for i in positions)  # type: ignore[attr-defined]


def size_of(tensor: object) -> int:
    """The bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()  # type: ignore[attr-defined]
