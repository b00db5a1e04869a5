"""Sizes and positions that depend on data: one graph for all, checked before a kernel relies on
them.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata


@pytest.fixture(autouse=True)
def _reset():
    torchstrata.reset()


def assert_one_graph(function, calls, graphs=1, **options):
    compiled = torchstrata.compile(function, fullgraph=True, **options)
    for args in calls:
        try:
            expected = function(*args)
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(*args)
            continue
        result = compiled(*args)
        torch.testing.assert_close(result, expected)
        assert [r.stride() for r in result if r.numel()] == [
            r.stride() for r in expected if r.numel()
        ]
    assert torchstrata.counters["graphs"] <= graphs
    assert not torchstrata.counters["fallbacks"]


def numbers(*values):
    return [(torch.randn(5, 3), torch.tensor(value)) for value in values]


def halves(x, at):
    n = at.item()
    return x[:n] * 2, x[n:], torch.cat([x[n:], x[:n]]) + x


def rows(x, at):
    n = at.item()
    return x[n] * 2, x.select(0, n), x[n, None, 1:], x[torch.tensor([0, 1]), n % 3]


def written(x, at):
    n = at.item()
    x = x.clone()
    x[:n] = 0
    x[n] += 7
    x[n, 1:] = 5
    return (x,)


def between(x, at):
    first, last = at.tolist()
    return x[first:last].sum(0), x[first:last], x[:, first:][1:last]


@pytest.mark.parametrize("function", [halves, rows, written])
def test_slices_and_positions(function):
    assert_one_graph(function, numbers(0, 3, -1, 4, -5, 1, 7))


def test_slices_between_numbers():
    assert_one_graph(between, numbers([0, 3], [1, 4], [2, 2], [3, 1], [-3, -1], [0, 9]))


def test_positions_below_the_first():
    def chosen(x, at):
        row, column = at.tolist()
        return (x[row, column] * 2, x.select(0, row))

    assert_one_graph(chosen, numbers([1, 2], [5, 0], [0, 3], [-5, -3], [-6, 0], [0, -4]))


def test_strides_by_a_number_that_is_read_first():
    def padded(x, at):
        n = at.max().item()
        return torch.nn.functional.pad(x[:, :n], (0, 3)), x[:, :n].t().contiguous(), n > -2

    compiled = torchstrata.compile(padded, fullgraph=True)
    for x, at in numbers([1, 2], [3, 0], [-1, -2], [-3, -2]):
        result, expected = compiled(x, at), padded(x, at)
        torch.testing.assert_close(result[:2], expected[:2])
        assert result[2] is expected[2]


def test_slices_by_how_many_there_are():
    def first(x, mask):
        n = mask.nonzero().shape[0]
        return x[:n] * 2, x[n:], x[mask][:2], x[mask][1:]

    masks = [
        [True, False, True, True, False],
        [False] * 5,
        [True] * 5,
        [False, True, False, False, False],
    ]
    assert_one_graph(first, numbers(*masks))


def test_gradients_of_slices():
    def loss(x, at):
        n = at.item()
        return x[:n].square().sum() + x[n:].sum() + x[n].exp().sum()

    compiled = torchstrata.compile(loss, fullgraph=True)
    for value in (0, 3, -1, 4):
        x, at = torch.randn(5, 3, requires_grad=True), torch.tensor(value)
        loss(x, at).backward()
        expected, x.grad = x.grad, None
        compiled(x, at).backward()
        torch.testing.assert_close(x.grad, expected)
    assert torchstrata.counters["graphs"] == 1


@pytest.mark.parametrize("length", [3, 1_000_000])
def test_sizes_that_have_to_be_equal(length):
    def added(x, mask, y):
        return (x[mask] + y,)

    compiled = torchstrata.compile(added, fullgraph=True)
    x, y = torch.randn(length), torch.randn(length)
    mask = torch.ones(length, dtype=torch.bool)
    torch.testing.assert_close(compiled(x, mask, y), added(x, mask, y))
    with pytest.raises(RuntimeError, match="must match"):
        compiled(x, mask.logical_not(), y)
    mask[1:] = False
    # it is broadcast
    with pytest.warns(UserWarning, match="sizes that depend on data are not as assumed"):
        torch.testing.assert_close(compiled(x, mask, y), added(x, mask, y))


def test_a_check_that_sizes_are_equal():
    def filled(x, at):
        n = at.item()
        torch._check(n == x.shape[0])
        return (torch.zeros(n, 3) + x, x * n)

    assert_one_graph(filled, numbers(5, 3, 5))


def test_numbers_that_change():
    def parts(x, n):
        return x[n] * 2, x[:, n], x[..., n : n + 2]

    compiled = torchstrata.compile(parts)
    for n in (2, 3, 4, 5, 6, 7):
        x = torch.randn(9, 9)
        torch.testing.assert_close(compiled(x, n), parts(x, n))
    assert torchstrata.counters["graphs"] == 2


def test_positions_in_tensors_made_of_sizes():
    """Deberta's relative positions: the bounds of a slice are tensors, each made of a size."""

    def around_the_middle(x, table):
        span = torch.tensor(min(x.size(0), 8))
        return (
            x[: span // 2] + table[8 - span : span + 8].sum(),
            table[-(span * 2 - 3) :, 1:],
            table[:span] * span,
        )

    table = torch.randn(16, 3)
    assert_one_graph(
        around_the_middle, [(torch.randn(n, 3), table) for n in (4, 6, 8, 11, 2)], graphs=2
    )


def test_bounds_in_tensors_that_are_written():
    def after_a_write(x):
        bound = torch.tensor(x.size(0))
        before = x[: bound - 1]
        bound.fill_(1)
        return before, x[:bound]

    compiled = torchstrata.compile(after_a_write)
    for n in (4, 6, 5):
        x = torch.randn(n, 3)
        for found, expected in zip(compiled(x), after_a_write(x)):
            torch.testing.assert_close(found, expected)
