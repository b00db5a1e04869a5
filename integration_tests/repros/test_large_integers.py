"""Integers of Python that do not fit in the 64 bits in which graphs compute."""

from __future__ import annotations

import pytest
import torch
import torchstrata

VALUES = (3, 5, 7, 10**9, 10**10, 10**20, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**70 + 5, -(10**20), 2**32)
CALLS = {
    "product": lambda x, n: x * n,
    "sum": lambda x, n: x + n,
    "of integers": lambda x, n: x.long() * n,
    "remainder": lambda x, n: (x + n % 1000, x + (-n) % 97),
    "square": lambda x, n: x + (n * n) % 97,
    "cube": lambda x, n: x.long() + (n**3) % 89,
    "shift": lambda x, n: x + ((n << 3) >> 3) % 1009,
    "quotient": lambda x, n: (x + n // 10**15, x * (n / 3)),
    "as a float": lambda x, n: x * float(n),
    "size": lambda x, n: torch.arange(n % 7),
    "comparison": lambda x, n: (x.long() == n * n, n > 2**63),
    "returned": lambda x, n: (x + 1, n * n, n**3, -n, n + 10**20),
}


def outcome(call, *args):
    try:
        return call(*args)
    except Exception as error:
        return type(error)


@pytest.fixture(autouse=True)
def _reset():
    torchstrata.reset()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["torchstrata", "eager"])
def test_integers_that_change(name, dynamic, backend):
    compiled, x = torchstrata.compile(CALLS[name], dynamic=dynamic, backend=backend), torch.tensor([1.0, 2.0])
    for n in VALUES:
        expected, result = outcome(CALLS[name], x, n), outcome(compiled, x, n)
        if isinstance(expected, type):
            assert result is expected, n
        else:
            torch.testing.assert_close(result, expected, msg=str(n))


@pytest.mark.parametrize("dynamic", [None, True])
def test_products_of_two(dynamic):
    def program(x, a, b):
        return x + (a * b) % 97, a * b

    compiled, x = torchstrata.compile(program, dynamic=dynamic), torch.ones(2)
    for a, b in ((3, 4), (5, 6), (10**10, 10**10), (10**9, 10**9 + 1), (2**40, 2**40)):
        torch.testing.assert_close(compiled(x, a, b), program(x, a, b))


def test_small_numbers_share_a_graph():
    compiled, x = torchstrata.compile(lambda x, n: x * (n * n + x.shape[0] * n), fullgraph=True), torch.ones(2)
    for n in (2, 3, 1000, 10**6, 2**31 - 1):
        assert torch.equal(compiled(x, n), x * (n * n + 2 * n))
    assert torchstrata.counters["graphs"] == 2
