"""Functions behind ``functools.lru_cache`` that are called with sizes: their results hold lists and
dicts, which are the cache's own, and depend on attributes of arguments.
"""

import functools

import pytest
import torch
import torchstrata

LENGTHS = (4, 6, 9, 4, 10, 6)


class Recipe:
    """Hashed by identity, as the recipes of einops are."""

    def __init__(self, factor):
        self.factor = factor
        self.order = [1, 0]

    def sizes(self, shape):
        rows, columns = shape
        return [rows * self.factor, columns], self.order, {"rows": rows}, (rows, None)


def program():
    cached = functools.lru_cache(16)(Recipe.sizes)
    recipe = Recipe(1)

    def call(x):
        shape, order, named, (rows, nothing) = cached(recipe, tuple(x.shape))
        y = x.reshape(shape).permute(order) * named["rows"] + rows
        again = cached(recipe, tuple(y.permute(order).shape))
        return (y if nothing is None else x), again[0] is shape

    return call, cached, recipe


def compiled(call):
    torchstrata.reset()
    return torchstrata.compile(call)


def test_one_graph_for_all_sizes():
    call, cached, _ = program()
    expected = [call(torch.ones(n, 3)) for n in LENGTHS]
    counted = cached.cache_info()
    cached.cache_clear()
    fast = compiled(call)
    for (value, same), n in zip(expected, LENGTHS):
        result, is_same = fast(torch.ones(n, 3))
        torch.testing.assert_close(result, value)
        assert same and is_same
    assert cached.cache_info() == counted
    assert torchstrata.counters["graphs"] <= 2
    assert not torchstrata.counters["graph_breaks"]


def test_what_the_cache_holds_counts():
    call, cached, recipe = program()
    fast = compiled(call)
    for n in (4, 6, 9):
        fast(torch.ones(n, 3))
    recipe.factor = 7  # the cache keeps what it holds
    torch.testing.assert_close(fast(torch.ones(6, 3)), call(torch.ones(6, 3)))
    cached.cache_clear()
    with pytest.raises(RuntimeError):
        call(torch.ones(6, 3))
    with pytest.raises(RuntimeError):
        fast(torch.ones(6, 3))


@functools.lru_cache
def halves(n):
    return [n // 2, n - n // 2], {"n": [n]}


def changing(x):
    parts, named = halves(x.shape[0] * 2 + 1)
    y = x * parts[0]
    parts[0] += 1
    named["n"].append(x.shape[0])
    return y, parts, named


def test_results_that_are_changed():
    found = {}
    for name, call in {"eager": changing, "compiled": compiled(changing)}.items():
        halves.cache_clear()
        found[name] = [
            (y, [*parts], {k: [*v] for k, v in named.items()}, parts is halves(2 * n + 1)[0])
            for n in LENGTHS
            for y, parts, named in [call(torch.ones(n, 2))]
        ]
    for ours, theirs in zip(found["compiled"], found["eager"]):
        torch.testing.assert_close(ours[0], theirs[0])
        assert ours[1:] == theirs[1:]


def two(x, y):
    first, second = halves(x.shape[0])[0], halves(y.shape[0])[0]
    first[0] += 1
    return x.sum() * first[0] + y.sum() * second[0], first is second


def test_two_sizes_that_meet_later():
    fast, pairs = compiled(two), [(4, 6), (5, 7), (8, 9), (6, 6), (9, 8), (10, 10)]
    for n, m in pairs:
        halves.cache_clear()
        expected = two(torch.ones(n), torch.ones(m))
        halves.cache_clear()
        result = fast(torch.ones(n), torch.ones(m))
        torch.testing.assert_close(result[0], expected[0])
        assert result[1] is expected[1]


seen = []


@functools.lru_cache
def noted(n):
    if n > 8:
        seen.append(n)
    return [n, n * 2]


def large(x):
    return x * noted(x.shape[0])[1]


def test_guards_do_not_repeat_what_a_function_does_elsewhere():
    fast = compiled(large)
    for n in (4, 5, 6, 20, 7, 20, 30):
        torch.testing.assert_close(fast(torch.ones(n)), torch.full((n,), 2.0 * n))
    assert seen == [20, 30]


@functools.lru_cache
def circular(n):
    values = [n]
    values.append(values)
    return values


def test_a_result_that_holds_itself():
    fast = compiled(lambda x: x * circular(x.shape[0])[1][0])
    for n in (4, 5, 6, 7):
        torch.testing.assert_close(fast(torch.ones(n)), torch.full((n,), 1.0 * n))


@functools.lru_cache
def scaled(n, factor):
    return n * factor


def test_a_number_that_varies():
    fast = compiled(lambda x, factor: x * scaled(x.shape[0], factor))
    for n in (4, 5, 6, 7):
        result = fast(torch.ones(n), n / 4)
        torch.testing.assert_close(result, torch.full((n,), n * n / 4))
    assert torchstrata.counters["graphs"] <= 3
