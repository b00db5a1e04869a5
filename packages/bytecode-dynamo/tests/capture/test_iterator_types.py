"""Iterators that captured code returns have eager's type and continue where it left them."""

from __future__ import annotations

import collections
import itertools
import operator

import bytecode_dynamo as bd
import pytest
import torch

ITEMS = (3, 1, 2, 2, 5)


class Indexed:
    def __len__(self):
        return len(ITEMS)

    def __getitem__(self, index):
        return ITEMS[index]


ITERATORS = {
    "accumulate": lambda: itertools.accumulate(ITEMS),
    "accumulate a product": lambda: itertools.accumulate(ITEMS, operator.mul),
    "accumulate from an initial value": lambda: itertools.accumulate(ITEMS, initial=7),
    "accumulate to None": lambda: itertools.accumulate(ITEMS, lambda total, item: None),
    "takewhile": lambda: itertools.takewhile(lambda item: item > 1, ITEMS),
    "dropwhile": lambda: itertools.dropwhile(lambda item: item > 2, ITEMS),
    "filterfalse": lambda: itertools.filterfalse(lambda item: item == 2, ITEMS),
    "filterfalse of None": lambda: itertools.filterfalse(None, (0, *ITEMS, 0)),
    "compress": lambda: itertools.compress(ITEMS, (1, 0, 1, 1)),
    "starmap": lambda: itertools.starmap(pow, [(item, 2) for item in ITEMS]),
    "pairwise": lambda: itertools.pairwise(ITEMS),
    "chain": lambda: itertools.chain(ITEMS, "ab"),
    "chain.from_iterable": lambda: itertools.chain.from_iterable(zip(ITEMS, "abcde")),
    "cycle": lambda: itertools.cycle(ITEMS[:2]),
    "islice": lambda: itertools.islice(ITEMS, 1, None, 2),
    "islice to a stop": lambda: itertools.islice(itertools.count(), 2, 9, 3),
    "islice past its stop": lambda: itertools.islice(ITEMS, 4, 2),
    "zip_longest": lambda: itertools.zip_longest(ITEMS, "ab", fillvalue="end"),
    "product": lambda: itertools.product("ab", ITEMS, repeat=1),
    "permutations": lambda: itertools.permutations(ITEMS, 2),
    "combinations": lambda: itertools.combinations(ITEMS, 3),
    "combinations with replacement": lambda: itertools.combinations_with_replacement("ab", 2),
    "tee": lambda: itertools.tee(ITEMS)[1],
    "call until a sentinel": lambda: iter(iter(ITEMS).__next__, 5),
    "a sequence": lambda: iter(Indexed()),
    "a sequence backward": lambda: reversed(Indexed()),
    "str": lambda: iter("abc"),
    "str that isn't ASCII": lambda: iter("äbc"),
    "bytes": lambda: iter(b"abc"),
    "str backward": lambda: reversed("abc"),
    "tuple": lambda: iter(ITEMS),
    "tuple backward": lambda: reversed(ITEMS),
    "list backward": lambda: reversed([*ITEMS]),
    "range backward": lambda: reversed(range(4)),
    "dict": lambda: iter({1: 2, 3: 4}),
    "dict backward": lambda: reversed({1: 2, 3: 4}),
    "values": lambda: iter({1: 2, 3: 4}.values()),
    "items backward": lambda: reversed({1: 2, 3: 4}.items()),
    "keys of an OrderedDict": lambda: iter(collections.OrderedDict(a=1, b=2).keys()),
    "set": lambda: iter({1, 2}),
    "deque": lambda: iter(collections.deque(ITEMS)),
}
if hasattr(itertools, "batched"):
    ITERATORS["batched"] = lambda: itertools.batched(ITEMS, 2)


@pytest.mark.parametrize("steps", [0, 1, 2, 9])
@pytest.mark.parametrize("kind", ITERATORS)
def test_type_and_remaining_items(kind, steps):
    make = ITERATORS[kind]

    def program(x):
        iterator = make()
        first = [next(iterator, "end") for _ in range(steps)]
        return x + 1, iterator, first, type(iterator)

    captured = bd.optimize("eager")(program)
    for _ in range(2):
        (_, mine, *rest), (_, theirs, *expected) = captured(torch.ones(2)), program(torch.ones(2))
        assert type(mine) is type(theirs)
        assert rest == expected
        assert list(itertools.islice(mine, 9)) == list(itertools.islice(theirs, 9))
    assert bd.counters["fallbacks"] == 0 and bd.counters["graphs"] == 1


def test_two_readers_of_one_tee():
    def program(x, items):
        source = iter(items)
        left, right = itertools.tee(source)
        next(left), next(left), next(right)
        return x + 1, left, right, source

    captured = bd.optimize("eager", fullgraph=True)(program)
    _, left, right, source = captured(torch.ones(2), [1, 2, 3, 4])
    assert next(left) == 3 and list(right) == [2, 3, 4]
    assert list(left) == [4] and list(source) == []


def test_groups():
    def program(x, items):
        groups = itertools.groupby(items, lambda item: item // 10)
        _, first = next(groups)
        taken = next(first)
        key, second = next(groups)
        return x + taken, key, list(first), list(second), type(second), [k for k, _ in groups]

    captured = bd.optimize("eager", fullgraph=True)(program)
    for items in ([1, 2, 13, 14, 25, 3], [1, 11]):
        assert repr(captured(torch.ones(2), items)) == repr(program(torch.ones(2), items))


def test_groups_outlive_the_graph():
    def program(x, items):
        groups = itertools.groupby(items)
        if x.sum() > 0:
            next(groups)
        return x + 1, groups

    captured = bd.optimize("eager")(program)
    mine, theirs = (f(torch.ones(2), [1, 1, 2, 3])[1] for f in (captured, program))
    assert type(mine) is type(theirs)
    assert [(k, list(g)) for k, g in mine] == [(k, list(g)) for k, g in theirs]


def test_an_iterator_goes_on_after_its_function_raises():
    def program(x):
        results = []
        inverse = itertools.starmap(operator.truediv, [(1, 2), (1, 0), (1, 4)])
        for _ in range(4):
            try:
                results.append(next(inverse))
            except ZeroDivisionError:
                results.append("raised")
            except StopIteration:
                results.append("end")
        return x + 1, results

    captured = bd.optimize("eager", fullgraph=True)(program)
    assert captured(torch.ones(2))[1] == program(torch.ones(2))[1] == [0.5, "raised", 0.25, "end"]
