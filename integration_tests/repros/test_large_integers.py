"""Integers of Python that do not fit in the 64 bits in which graphs compute."""

from __future__ import annotations

import aotgrad
import bytecode_dynamo
import inductor_cpp
import pytest
import torch
import torchstrata

from integration_tests.repros.outcome import outcome

VALUES = (
    3,
    5,
    7,
    10**9,
    10**10,
    10**20,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    2**70 + 5,
    -(10**20),
    2**32,
)
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


@pytest.fixture(autouse=True)
def _reset():
    torchstrata.reset()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["torchstrata", "eager"])
def test_integers_that_change(name, dynamic, backend):
    compiled, x = (
        torchstrata.compile(CALLS[name], dynamic=dynamic, backend=backend),
        torch.tensor([1.0, 2.0]),
    )
    for n in VALUES:
        expected, result = outcome(CALLS[name], x, n), outcome(compiled, x, n)
        if isinstance(expected, type):
            assert result is expected, n
        else:
            torch.testing.assert_close(result, expected, msg=str(n))


@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.slow)])
def test_products_of_two(dynamic):
    def program(x, a, b):
        return x + (a * b) % 97, a * b

    compiled, x = torchstrata.compile(program, dynamic=dynamic), torch.ones(2)
    for a, b in ((3, 4), (5, 6), (10**10, 10**10), (10**9, 10**9 + 1), (2**40, 2**40)):
        torch.testing.assert_close(compiled(x, a, b), program(x, a, b))


def test_small_numbers_share_a_graph():
    compiled, x = (
        torchstrata.compile(lambda x, n: x * (n * n + x.shape[0] * n), fullgraph=True),
        torch.ones(2),
    )
    for n in (2, 3, 1000, 10**6, 2**31 - 1):
        assert torch.equal(compiled(x, n), x * (n * n + 2 * n))
    assert torchstrata.counters["graphs"] == 2


@pytest.mark.parametrize("codegen", [False, True])
def test_back_ends_given_plain_sizes(codegen):
    """Examples without symbols do not make constants of a graph's symbols."""
    captured = []

    def program(x, n):
        return x * n + x.shape[0]

    def keep(module, examples):
        captured.extend([module, *examples])
        return module

    bytecode_dynamo.optimize(keep, dynamic=True)(program)(torch.ones(3, 4), 5)
    module, *examples = captured
    plain = [e if isinstance(e, torch.Tensor) else int(e) for e in examples]
    finish = inductor_cpp.compile_graph if codegen else lambda graph, _: graph
    compiled = aotgrad.aot_backend(lambda graph, inputs: finish(graph, inputs))(module, plain)
    for n, rows in ((5, 3), (7, 6), (9, 2)):
        known = {5: n, 3: rows, 4: 4}
        given = [
            torch.ones(rows, 4) if isinstance(e, torch.Tensor) else known[int(e)] for e in plain
        ]
        torch.testing.assert_close(compiled(*given)[0], program(torch.ones(rows, 4), n))
