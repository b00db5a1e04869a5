"""An existing ``enumerate`` can only be moved by advancing it, which advances what is below it."""

from __future__ import annotations

import itertools

import torch
import torchstrata


def test_a_count_below_an_enumerate():
    def program(x, numbered):
        at, number = next(numbered)
        return x * at + number

    compiled, x = torchstrata.compile(program), torch.ones(3)
    mine, theirs = enumerate(itertools.count()), enumerate(itertools.count())
    for _ in range(4):
        assert torch.equal(compiled(x, mine), program(x, theirs))
    assert next(mine) == next(theirs)


def test_a_numbered_range_after_two_breaks():
    def program(x, n):
        for at, number in enumerate(range(n)):
            if at % 4 == 1:
                print(end="")
            x = x * 2 + number
        return x

    compiled, x = torchstrata.compile(program), torch.ones(3)
    for n in (12, 13):
        assert torch.equal(compiled(x, n), program(x, n))
