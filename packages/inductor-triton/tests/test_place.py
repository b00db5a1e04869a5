"""Planned places of blocks, with an allocator that takes the smallest block that is large enough,
as torch's does.
"""

from __future__ import annotations

import weakref
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inductor_triton.cuda_graphs.block_placement import (
    SMALL,
    UNIT,
    Block,
    Placer,
    blocks_of,
    place,
    with_hook,
)

MB = 1 << 20


class Held:
    """Holds memory while it lives."""


class Allocator:
    """Segments of blocks [start, size, is free]; large blocks only."""

    def __init__(self) -> None:
        self.segments: list[list[list[int]]] = []

    def held(self) -> int:
        return sum(size for blocks in self.segments for _, size, _ in blocks)

    def take(self, size: int) -> list[int]:
        assert size > SMALL
        size = -(-size // 512) * 512
        found = [
            (b[1], n, b[0])
            for n, blocks in enumerate(self.segments)
            for b in blocks
            if b[2] and b[1] >= size
        ]
        if not found:
            self.segments.append([[0, -(-size // UNIT) * UNIT, 1]])
            return self.take(size)
        _, number, start = min(found)
        blocks = self.segments[number]
        block = next(b for b in blocks if b[0] == start)
        if block[1] - size > SMALL:
            blocks.insert(blocks.index(block) + 1, [start + size, block[1] - size, 1])
            block[1] = size
        block[2] = 0
        return block

    def give(self, block: list[int]) -> None:
        block[2] = 1
        for blocks in self.segments:
            for i in range(len(blocks) - 1, 0, -1):
                if blocks[i][2] and blocks[i - 1][2]:
                    blocks[i - 1][1] += blocks.pop(i)[1]

    def empty(self, size: int) -> Held:
        holder, block = Held(), self.take(size)
        weakref.finalize(holder, self.give, block)
        return holder


def run(
    allocator: Allocator, calls: list[list[tuple[int, int]]], placer: Placer | None
) -> list[tuple[bool, int, int]]:
    """Each call takes blocks of so many bytes for so many calls; what happened."""
    events: list[tuple[bool, int, int]] = []
    alive: list[tuple[int, list[int], int]] = []
    for number, blocks in enumerate(calls):
        if placer is not None:
            placer.before(number)
        for size, life in blocks:
            alive.append((number + life, allocator.take(size), size))
            events.append((True, id(alive[-1][1]), size))
        for entry in [entry for entry in alive if entry[0] <= number]:
            alive.remove(entry)
            allocator.give(entry[1])
            events.append((False, id(entry[1]), entry[2]))
    return events


sizes = st.integers(SMALL + 1, 40 * MB)
programs = st.lists(
    st.lists(st.tuples(sizes, st.integers(0, 9)), max_size=3), min_size=1, max_size=25
)


@settings(max_examples=60, deadline=None)
@given(programs)
def test_blocks_lie_where_they_are_planned(calls):
    if not any(calls):
        return
    blocks = [
        Block(-(-s // 512) * 512, n, n + life) for n, call in enumerate(calls) for s, life in call
    ]
    placed, total = place(blocks)
    for i, a in enumerate(placed):
        for b in placed[:i]:
            assert (
                not a.block.meets(b.block)
                or a.start + a.room <= b.start
                or b.start + b.room <= a.start
            )
    allocator = Allocator()
    placer = Placer(placed, total, allocator.empty, allocator.held)
    placer.start()
    run(allocator, calls, placer)
    if all(len({-(-s // 512) for s, _ in call}) == len(call) for call in calls):
        assert placer.follows
        assert allocator.held() == total


def test_less_is_held_than_without_a_plan():
    calls = [
        [(20 * MB, 3)],
        [(74 * MB, 1)],
        [(20 * MB, 3)],
        [(37 * MB, 2)],
        [(74 * MB, 1)],
        [(10 * MB, 9)],
        [(90 * MB, 1)],
    ]
    plain = Allocator()
    run(plain, calls, None)
    blocks = [Block(s, n, n + life) for n, call in enumerate(calls) for s, life in call]
    placed, total = place(blocks)
    allocator = Allocator()
    placer = Placer(placed, total, allocator.empty, allocator.held)
    placer.start()
    run(allocator, calls, placer)
    assert allocator.held() == total < plain.held()


@pytest.mark.parametrize("turn", [1, -1])
def test_blocks_of_one_call_find_their_own_places(turn):
    """In whichever order the call asks: of holes that are alike, the first would get the
    other's.
    """
    calls = [
        [(9 * MB, 2)],
        [(9 * MB // 4, 0), (7 * MB // 3, 4)][::turn],
        [(9 * MB, 1)],
        [(9 * MB, 0)],
        [(30 * MB, 0)],
    ]
    placed, total = place(
        [Block(-(-s // 512) * 512, n, n + life) for n, call in enumerate(calls) for s, life in call]
    )
    allocator = Allocator()
    placer = Placer(placed, total, allocator.empty, allocator.held)
    placer.start()
    run(allocator, calls, placer)
    assert placer.follows and allocator.held() == total


def test_a_trace_becomes_blocks():
    events = [
        (True, 1, 5 * MB),
        (True, 2, 100),
        (False, 1, 5 * MB),
        (True, 1, 3 * MB + 1),
        (True, 9, 2 * MB),
    ]
    marks = [0, 2, 3, 4]
    assert blocks_of(events, marks) == [
        Block(5 * MB, 0, 1),
        Block(3 * MB + 512, 2, 4),
        Block(2 * MB, 3, 4),
    ]


def test_an_allocator_that_does_not_follow_is_left_alone():
    got = count(0, 100 * MB)
    placer = Placer(*place([Block(3 * MB, 1, 2)]), lambda size: Held(), lambda: next(got))
    placer.start()
    placer.before(0)
    assert placer.follows
    placer.before(1)
    assert not placer.follows
    assert not placer.fillers


def test_hooks_run_before_each_call():
    seen: list[str] = []
    names = {"add": lambda a, b: seen.append("add") or a + b, "two": 2}
    exec("def call(x):\n    return add(add(x, two), two)", names)
    hooked = with_hook(names["call"], lambda: seen.append("hook"))
    assert hooked(1) == 5
    assert seen == ["hook", "add", "hook", "add"]
    assert names["call"](1) == 5


@pytest.mark.gpu
def test_a_recording_is_captured_again_where_that_holds_less():
    import torch
    from inductor_triton import counters
    from torch import nn

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torchstrata = pytest.importorskip("torchstrata")
    net = nn.Sequential(
        *(layer for n in (512, 2048, 700, 3000, 600) for layer in (nn.LazyLinear(n), nn.GELU()))
    ).cuda()
    x = torch.randn(8192, 900, device="cuda")
    call = torchstrata.compile(net)
    counters.clear()
    with torch.no_grad():
        wanted = net(x)
        for _ in range(6):
            torch.testing.assert_close(call(x), wanted, rtol=1e-3, atol=1e-3)
    assert counters["recorded"] == 1
    assert counters["bytes"] < 8192 * 4 * (700 + 3000 + 3000) + (60 << 20)
