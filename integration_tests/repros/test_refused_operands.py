"""Operators that eager mode refuses for the dtypes of operands, or for want of elements, although
nobody uses the result.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch.nn import functional as F

from .outcome import outcome

OPERATORS = {
    "index of floats": lambda x, k: x.index_select(1, k[0] / 2),
    "classes of bools": lambda x, k: F.one_hot(k > 0, 4),
    "added rows of another dtype": lambda x, k: x.index_add(0, k[:, 0], x.double()),
    "rows of another dtype": lambda x, k: x.double().index_put_((k[:, 0],), x, accumulate=True),
    "masked rows of another dtype": lambda x, k: x.index_put((k[:, 0] >= 0,), x.double()),
    "subtracted bool": lambda x, k: x - True,
    "bits of floats": lambda x, k: x & x,
    "activation of integers": lambda x, k: F.gelu(k),
    "integers divided in place": lambda x, k: k.clone().div_(2),
    "integers divided by zero": lambda x, k: k // 0,
    "maximum of nothing": lambda x, k: x[:0].max(),
    "maxima of nothing": lambda x, k: x[:0].max(0),
    "reflected bools": lambda x, k: F.pad(k > 0, (1, 1), mode="reflect"),
    "nearest integers": lambda x, k: F.interpolate(k[None], scale_factor=2),
    "slope of integers": lambda x, k: F.prelu(k, k[0, :1]),
    "classes of 32 bits": lambda x, k: F.cross_entropy(x, k[:, 0].int()),
}


def observe(call, operator):
    x, k, log = torch.ones(3, 4), torch.tensor([[0, 1], [1, 0], [2, 1]]), []
    result = outcome(call, operator, x, k, log)
    return repr((result, log, x, k))


def program(operator, x, k, log):
    log.append("before")
    x.mul_(2)
    operator(x, k)
    log.append("after")
    return x


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
@pytest.mark.parametrize("name", OPERATORS)
def test_unused_results_raise_as_in_eager_mode(name, backend):
    expected = observe(program, OPERATORS[name])
    assert "Error" in expected
    assert observe(torchstrata.compile(program, backend=backend), OPERATORS[name]) == expected


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
@pytest.mark.parametrize(
    "expand", [lambda row, n: row.expand(n, 4), lambda row, n: row[:, None].expand(4, n)]
)
def test_number_that_becomes_minus_one_is_no_size(expand, backend):
    def expanded(row, n):
        result = expand(row, n)
        return row * 2, result.shape

    compiled = torchstrata.compile(expanded, backend=backend)
    row = torch.ones(4)
    for n in (3, -1, 2, -2, 4):
        assert str(outcome(compiled, row, n)) == str(outcome(expanded, row, n))
