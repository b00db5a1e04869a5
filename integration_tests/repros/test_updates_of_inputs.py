"""Inputs of which some elements are overwritten, such as caches of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchstrata
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS, COLUMNS = 6, 5
Program = Callable[..., Any]


def put(cache, rows, values):
    cache[rows] = values
    return cache.sum(0)


def copy_rows(cache, rows, values):
    cache.index_copy_(0, rows, values)
    return cache * 2


def read_before(cache, rows, values):
    before = cache.sum(0)
    cache[rows] = values
    return before


def depend_on_old(cache, rows, values):
    cache[rows] = cache[rows] + values
    return cache.amax()


def accumulate(cache, rows, values):
    cache.index_add_(0, rows, values)
    return cache.sum()


def twice(cache, rows, values):
    cache[rows] = values
    cache[rows.flip(0)] = values * 2
    return cache.sum(1)


def roll(cache, rows, values):
    cache.copy_(cache.roll(1, 0))
    cache[rows] = values
    return cache.sum()


def of_part(cache, rows, values):
    cache[1:].index_copy_(0, rows.clamp(max=ROWS - 2), values)
    return cache.sum(0)


def masked(cache, rows, values):
    cache[cache > 0.5] = 0.0
    cache[rows] = values
    return cache


PROGRAMS = [
    put, copy_rows, read_before, depend_on_old, accumulate, twice, roll, of_part, masked,
]  # fmt: skip


def inputs(rows: list[int], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    cache = torch.rand(ROWS, COLUMNS, generator=generator)
    return [cache, torch.tensor(rows), torch.rand(len(rows), COLUMNS, generator=generator)]


def check(program: Program, call: Program, rows: list[int], seed: int) -> None:
    """The same result and the same cache as eager mode after three calls."""
    ours, theirs = inputs(rows, seed), inputs(rows, seed)
    for _ in range(3):
        torch.testing.assert_close(call(*ours), program(*theirs))
        torch.testing.assert_close(ours[0], theirs[0])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_input_is_updated(program: Program) -> None:
    check(program, torchstrata.compile(program, fullgraph=True), [4, 1, 3], 0)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_any_rows(program: Program) -> None:
    call = torchstrata.compile(program, fullgraph=True, dynamic=False)

    @settings(max_examples=20, deadline=None)
    @given(st.permutations(range(ROWS)), st.integers(0, 1 << 30))
    def run(order: list[int], seed: int) -> None:
        check(program, call, [*order[:3]], seed)

    run()


def test_a_call_that_fails_half_way_is_repeated() -> None:
    def update(cache, length, rows, values):
        cache.index_copy_(0, length + torch.arange(1), values[:1])
        length.add_(1)
        return cache @ values.t()[:, rows]

    call = torchstrata.compile(update, fullgraph=True)
    states = []
    for function in (call, update):
        cache, rows, values = inputs([4, 1, 2], 0)
        length = torch.zeros(1, dtype=torch.long)
        function(cache, length, rows.clamp(max=2), values)
        with pytest.raises(IndexError):
            function(cache, length, rows, values)
        states.append((cache, length))
    torch.testing.assert_close(*states)
