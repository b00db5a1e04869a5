"""NumPy's generators: the numbers, their order and the states afterwards are eager mode's."""

from __future__ import annotations

import random

import bytecode_dynamo as bd
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st


def seeded(x, rng):
    np.random.seed(3)
    order, taken = np.random.permutation(9), 0
    for k in range(9):
        if order[k] not in (2, 3):
            taken += int(order[k]) * k
    return x + taken, np.random.rand(), order, np.random.randint(3, size=(2, 2))


def seeded_lists(x, rng):
    np.random.seed(1)
    items = [1, 2, 3, 4]
    np.random.shuffle(items)
    return x * items[0], items, np.random.choice(["a", "b"])


def numbers(x, rng):
    return x * np.random.rand() + torch.from_numpy(np.random.randn(2)), np.random.randint(1, 9)


def arrays(x, rng):
    items = np.arange(8, dtype=np.int32)
    order = np.random.permutation(items[2:])
    np.random.shuffle(items)
    return x + torch.from_numpy(order)[0], order, items, np.random.choice(items, 3)


def generator(x, rng):
    return x * rng.random() + torch.from_numpy(rng.standard_normal(2)), rng.integers(9, size=3)


def rows(x, rng):
    items = np.arange(8.0)
    rng.shuffle(items)
    table = items.reshape(4, 2)
    return x + 1, items, rng.permutation(table), rng.choice(table, 2), rng.choice(items, 3, False)


def both(x, rng):
    return x + random.random() + np.random.uniform(-1, 1) + random.random(), np.random.rand(2)


def changed(x, rng):
    drawn = np.random.rand(3)
    drawn[0] = 5
    return x + 1, drawn


def made_here(x, rng):
    old, new = np.random.RandomState(3), np.random.default_rng(seed=4)
    items = [1, 2, 3, 4]
    new.shuffle(items)
    for _ in range(5):
        x = x + old.rand() if new.random() > 0.5 else x * int(new.integers(1, 9))
    drawn = old.permutation(4), new.normal(0, 2, size=3), new.choice([5, 6]), old.choice(["a", "b"])
    same = np.random.RandomState(3).rand(), isinstance(old, np.random.RandomState)
    return x * items[0], items, drawn, same, np.random.rand()


def picked(x, rng):
    number = np.random.choice([1, 2, 3]), np.random.choice(4), rng.choice([0.5, 1.5], p=[0.3, 0.7])
    return x * int(number[0]) + float(number[2]), number, rng.integers(9), np.random.rand()


WHOLE = [seeded, seeded_lists, numbers, arrays, generator, rows, both, changed, made_here, picked]


def split(x, rng):
    before = np.random.rand()
    bd.graph_break()
    return x + before, np.random.rand(2)


def read_state(x, rng):
    drawn = np.random.rand(2)
    return x + 1, drawn, np.random.get_state()[2], np.random.rand()


def made_without_a_seed(x, rng):
    return x + 1, isinstance(np.random.default_rng(), np.random.Generator), np.random.rand()


def one_text(x, rng):
    return x + 1, np.random.choice(["a", "b"])


def made_before_a_break(x, rng):
    own = np.random.default_rng(2)
    x = x * own.random()
    bd.graph_break()
    return x + own.random()


def one_of(x, rng):
    return x + 1, np.random.choice([1, 2, 3]), np.random.bytes(2)


BROKEN = [split, read_state, one_of, made_without_a_seed, one_text, made_before_a_break]


def results(program, function):
    random.seed(5), np.random.seed(11)
    rng, found = np.random.default_rng(7), []
    for _ in range(3):
        found.append(repr(function(torch.ones(2), rng)))
    return [*found, np.random.rand(), random.random(), rng.random()]


@pytest.mark.parametrize("program", [*WHOLE, *BROKEN])
def test_draws(program):
    captured = bd.optimize("eager", fullgraph=program in WHOLE)(program)
    assert results(program, captured) == results(program, program)
    assert program not in WHOLE or bd.counters["graphs"] == 1


PICKS = [
    lambda rng, items, table: (np.random.shuffle(x=items), items),
    lambda rng, items, table: (rng.shuffle(items, axis=0), items),
    lambda rng, items, table: (rng.shuffle(table, axis=1), table),
    lambda rng, items, table: rng.permutation(table, axis=1),
    lambda rng, items, table: rng.choice(table, 2, axis=1),
    lambda rng, items, table: rng.choice(table, 2, True, None, 1),
    lambda rng, items, table: rng.choice(table, size=3, replace=False),
    lambda rng, items, table: np.random.choice(np.array(5), 2),
    lambda rng, items, table: (np.random.choice(table[0]), rng.choice(table[0])),
    lambda rng, items, table: (rng.permuted(items), np.random.permutation(items), items),
]


@pytest.mark.parametrize("pick", PICKS)
def test_what_is_picked(pick):
    def program(x, rng):
        return x + 1, pick(rng, [1, 2, 3, 4, 5], np.arange(12).reshape(4, 3))

    assert results(program, bd.optimize("eager")(program)) == results(program, program)


@pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng])
def test_a_generator_made_here_is_returned_in_its_last_state(make):
    program = lambda x: (make(5), make(5).normal(), x)  # noqa: E731
    again = bd.optimize("eager", fullgraph=True)(lambda x: use(x, make(5)))
    for _ in range(2):
        fresh, number, _ = bd.optimize("eager", fullgraph=True)(program)(torch.ones(2))
        assert fresh.normal() == number == make(5).normal()
        drawn = again(torch.ones(2))[1]
        assert repr(drawn.normal()) == repr(use(torch.ones(2), make(5))[1].normal())


def use(x, rng):
    return x * rng.normal(), rng


def test_a_legacy_choice_of_rows_is_an_error():
    program = lambda x: (x + 1, np.random.choice(np.arange(6).reshape(2, 3), 2))  # noqa: E731
    with pytest.raises(ValueError, match="1-dimensional"):
        bd.optimize("eager")(program)(torch.ones(2))


@pytest.mark.parametrize("bad", [lambda r: r.integers(5, 2), lambda r: r.choice([], 2)])
def test_bad_arguments(bad):
    rng = np.random.default_rng(1)
    with pytest.raises(ValueError):
        bd.optimize("eager")(lambda x: (x + 1, bad(rng)))(torch.ones(2))


def test_a_call_that_runs_again_draws_once():
    def program(x, at, held, rng):
        held.append((np.random.rand(), random.random(), rng.random()))
        row = x[at]
        held.append(rng.random())
        return row

    def run(function):
        random.seed(5), np.random.seed(11)
        held, rng = [], np.random.default_rng(3)
        function(torch.ones(3), torch.tensor([1]), held, rng)
        with pytest.raises(IndexError):
            function(torch.ones(3), torch.tensor([7]), held, rng)
        return held, np.random.rand(), random.random(), rng.random()

    assert run(bd.optimize("eager")(program)) == run(program)


DRAWS = st.sampled_from(
    [
        ("rand", 2),
        ("randn",),
        ("permutation", 5),
        ("randint", 1, 7),
        ("normal", 0.0, 2.0, 3),
        ("choice", 4, 2),
        ("seed", 4),
        ("uniform",),
        ("standard_normal",),
    ]
)


@given(st.lists(DRAWS, min_size=1, max_size=5), st.integers(0, 4))
@settings(max_examples=30)
def test_any_draws_in_order(draws, breaks_after):
    def program(x, rng):
        found = []
        for place, (name, *arguments) in enumerate(draws):
            found.append(getattr(np.random, name)(*arguments))
            if place == breaks_after:
                bd.graph_break()
        return x + 1, found

    assert results(program, bd.optimize("eager")(program)) == results(program, program)
