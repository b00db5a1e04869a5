"""A number that a program reads from an input of one element is guarded like a number that it is
called with.
"""

from __future__ import annotations

import math

import bytecode_dynamo
import pytest
import torch
import torchstrata

from integration_tests.repros.test_numbers_of_written_tensors import WRITES

X = torch.arange(6.0)


@pytest.fixture(autouse=True)
def fresh():
    torchstrata.reset()


def assert_alike(program, calls, graphs, **options):
    """Results, and what the calls leave in their arguments, are eager's, in so many graphs."""
    compiled = torchstrata.compile(program, **options)
    for call in calls:
        given, expected = [[x.clone() for x in call] for _ in range(2)]
        torch.testing.assert_close(compiled(*given), program(*expected), equal_nan=True)
        torch.testing.assert_close(given, expected, equal_nan=True)
    counters = torchstrata.counters
    assert (counters["graphs"], counters["graph_breaks"]) == (graphs, 0)
    assert counters["fallbacks"] == 0


def read(x, n):
    return x * n.item(), n.item()


def converted(x, n):
    return x * float(n) + int(n)


def listed(x, n):
    return x * n.tolist()


def bound(x, n):
    return x[: int(n)], x[:n]


def branched(x, n):
    return x + 1 if n.item() > 3 else x - 1


def counted(x, n):
    for k in range(n.item()):
        x = x + k
    return x


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize(
    ("program", "graphs"),
    [(read, 2), (converted, 2), (listed, 2), (bound, 2), (branched, 3), (counted, 5)],
)
def test_ints_become_symbols_when_they_change(program, graphs, fullgraph):
    calls = [(X, torch.tensor(n)) for n in (2, 3, 4, 5, 2, 6)]
    assert_alike(program, calls, graphs, fullgraph=fullgraph)


def test_floats_become_symbols_when_they_change():
    numbers = (1.5, 2.5, 3.5, math.nan, math.inf, -0.0, 0.0, 7.5)
    assert_alike(read, [(X, torch.tensor(n)) for n in numbers], 4)


def test_truth_of_a_flag():
    def program(x, flag):
        return x + 1 if flag else x - 1

    assert_alike(program, [(X, torch.tensor(flag)) for flag in (True, False, True)], 2)


def test_an_element_of_a_vector():
    assert_alike(read, [(X, torch.tensor([n])) for n in (2.5, 3.5, 4.5)], 2)


def test_a_parameter_that_requires_a_gradient():
    n = torch.tensor(2.5, requires_grad=True)
    compiled = torchstrata.compile(read, fullgraph=True)
    for _ in range(3):
        result, number = compiled(X, n)
        assert (not result.requires_grad, number) == (True, n.item())
        with torch.no_grad():
            n += 1


def test_the_number_before_a_write():
    def program(x, n):
        before = n.item()
        n.add_(1)
        return x * before, before, n

    assert_alike(program, [(X, torch.tensor(n)) for n in (2, 3, 4, 5)], 2)


@pytest.mark.parametrize("write", WRITES)
def test_the_number_after_a_write(write):
    def program(x, n):
        write(n)
        return x * n.item()

    compiled = torchstrata.compile(program)
    for number in (2, 3, 4):
        n, expected = torch.tensor(number), torch.tensor(number)
        torch.testing.assert_close(compiled(X, n), program(X, expected))
        assert n == expected


def test_a_write_to_the_memory_of_the_number():
    def program(x, n):
        x.add_(1)
        return x * n.item()

    compiled = torchstrata.compile(program)
    x, expected = X.clone(), X.clone()
    compiled(X.clone(), torch.tensor(2.0))
    torch.testing.assert_close(compiled(x, x[3]), program(expected, expected[3]))


def test_export_is_for_other_numbers():
    graph = bytecode_dynamo.export(read)(X, torch.tensor(2.5)).graph_module
    torch.testing.assert_close(graph(X, torch.tensor(4.0)), read(X, torch.tensor(4.0)))
