"""``functools.partial.keywords`` is one dict, into which programs may write."""

from __future__ import annotations

import functools

import pytest
import torch
import torchstrata


def scaled(x, factor=1, shift=2):
    return x * factor + shift


def read(x, partial):
    return x + 1, partial.keywords, partial.keywords is partial.keywords


def written(x, partial):
    partial.keywords["shift"] = 7
    partial.keywords.update(factor=5)
    return partial(x)


def deleted(x, partial):
    del partial.keywords["factor"]
    return partial(x), len(partial.keywords)


def made(x, partial):
    other = functools.partial(partial, shift=4)
    held = other.keywords
    held["factor"] = 8
    return other(x), held, other.keywords is held, partial.keywords


def returned(x, partial):
    other = functools.partial(scaled, factor=3)
    held = other.keywords
    held["shift"] = 5
    return other, held, x + 1


def across_a_break(x, partial):
    held = partial.keywords
    torchstrata.graph_break()
    held["shift"] = 6
    return partial(x), held is partial.keywords


@pytest.mark.parametrize("program", [read, written, deleted, made, returned, across_a_break])
def test_keywords_are_one_dict(program):
    found = []
    for run in (program, torchstrata.compile(program)):
        partial = functools.partial(scaled, factor=3)
        held = partial.keywords
        results = run(torch.ones(2), partial)
        same = [part is held for part in results] if isinstance(results, tuple) else []
        if program is returned:
            same.append(results[0].keywords is results[1])
            results = results[1:]
        found.append((results, same, dict(held), partial.keywords is held))
    assert str(found[0]) == str(found[1])
