"""Loops over containers that change meanwhile, in one graph and across graph breaks: what eager's
iterators give and refuse.
"""

from __future__ import annotations

import collections
import copy

import pytest
import torch
import torchstrata

from .outcome import outcome


class Queue(collections.deque):
    pass


class Counts(collections.Counter):
    pass


def one_graph(x, held, over, change, log):
    for item in over(held):
        log.append(item)
        change(held, len(log))
    return x + 1


def broken_before_the_change(x, held, over, change, log):
    for item in over(held):
        log.append(item)
        torchstrata.graph_break()
        change(held, len(log))
    return x + 1


def broken_after_the_change(x, held, over, change, log):
    for item in over(held):
        log.append(item)
        change(held, len(log))
        torchstrata.graph_break()
    return x + 1


def made_before_the_break(x, held, over, change, log):
    held = type(held)(held)
    for item in over(held):
        log.append(item)
        torchstrata.graph_break()
        change(held, len(log))
    return list(held), x + 1


def readd(held, n):
    held[2] = held.pop(2)


def rename(held, n):
    held[n + 9] = held.pop(n)


def replace_member(held, n):
    held.discard(n)
    held.add(n + 32)


def rotate(held, n):
    held.rotate(1)


def requeue(held, n):
    held.append(held.popleft())


def store(held, n):
    held[n % len(held)] = n * 10


def put_back(held, n):
    held.append(held.pop())


def backwards(held, n):
    held.reverse()


ITEMS = [1, 2, 3, 4]
ENTRIES = dict.fromkeys(ITEMS, 0)
CASES = [
    *((made, over, change) for made in (collections.deque(ITEMS), Queue(ITEMS)) for over in (iter,
    enumerate, reversed)
      for change in (rotate, requeue, store, put_back, backwards)),
    *((ITEMS, reversed, change) for change in (store, put_back, backwards)),
    *((made, over, change)
      for made in (ENTRIES, collections.OrderedDict(ENTRIES), collections.defaultdict(int, ENTRIES),
      Counts(ENTRIES))
      for over in (iter, reversed, lambda held: enumerate(held.items())) for change in (readd,
      rename, store)),
    (set(ITEMS), iter, replace_member),
]  # fmt: skip


@pytest.mark.parametrize(
    "program", [one_graph, broken_before_the_change, broken_after_the_change, made_before_the_break]
)
@pytest.mark.parametrize(("held", "over", "change"), CASES)
def test_loop_is_eagers(program, held, over, change):
    def run(call):
        mine, log = copy.copy(held), []
        return repr((outcome(call, torch.ones(1), mine, over, change, log), mine, log))

    assert run(torchstrata.compile(program, backend="eager")) == run(program)
