"""Writes that read the memory that they write to: eager mode refuses them, or computes with what it
has just written.
"""

from __future__ import annotations

import warnings

import pytest
import torch
import torchstrata

from integration_tests.repros.outcome import outcome

ZERO, ZEROS = torch.tensor([0]), torch.zeros(3, 4, dtype=torch.long)
WRITES = {
    "index_add": lambda x: x.index_add_(0, ZERO, x[:1]),
    "index_add of a keyword": lambda x: x.index_add_(0, ZERO, source=x[2:]),
    "index_copy": lambda x: x.index_copy_(0, ZERO, x[1:2]),
    "index_copy of all": lambda x: x.index_copy_(1, torch.tensor([3, 2, 1, 0]), x),
    "index_put": lambda x: x.index_put_((ZERO,), x[1:2]),
    "index_reduce": lambda x: x.index_reduce_(0, ZERO, x[1:2], "prod"),
    "put": lambda x: x.put_(ZERO, x[1, :1]),
    "scatter": lambda x: x.scatter_(1, ZEROS, x),
    "scatter_add": lambda x: x.scatter_add_(1, ZEROS, x),
    "scatter_reduce": lambda x: x.scatter_reduce_(1, ZEROS, x.view(3, 4), "amax"),
    "a keyword": lambda x: x.clamp_(min=x[1]),
    "columns": lambda x: x[:, 1:].add_(x[:, :-1]),
    "a column": lambda x: x.sub_(x[:, :1]),
    "itself": lambda x: x.add_(x),
    "itself of another shape": lambda x: x.mul_(x.view(1, 3, 4)[0]),
    "rows apart": lambda x: x[0].add_(x[1]),
    "columns apart": lambda x: x[:, ::2].add_(x[:, 1::2]),
    "out, a row": lambda x: torch.add(x, x[:1], out=x),
    "out, columns": lambda x: torch.mul(x[:, :-1], 2, out=x[:, 1:]),
    "out, itself": lambda x: torch.add(x, x, out=x),
    "out, rows apart": lambda x: torch.add(x[0], 1, out=x[1]),
    "out of another size": lambda x: torch.add(x[:1], x[:1], out=x),
    "indices of another tensor": lambda x: x.index_add_(0, ZERO, x[1:2] * 2),
}
LAYOUTS = {
    "rows": lambda x: x.clone(),
    "columns": lambda x: x.t().contiguous().t(),
    "gaps": lambda x: torch.cat([x, x])[::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", WRITES)
def test_errors_and_values_are_those_of_eager(write, layout):
    def run(call):
        x = LAYOUTS[layout](torch.arange(12.0).reshape(3, 4))
        result = outcome(call, x)
        return x.tolist(), result.tolist() if torch.is_tensor(result) else result

    compiled = torchstrata.compile(WRITES[write])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # graphs that run eagerly
        assert run(compiled) == run(WRITES[write])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", ["columns", "a column", "first row", "first row of all", "ends"])
def test_rows_that_change(write, layout):
    """Whether memory is shared was not asked of symbolic sizes; eager refuses one dense row, whose
    two views differ in rank.
    """
    rows = {"first row": lambda x: x.sub_(x[0]), "first row of all": lambda x: x[:1].sub_(x[0])}
    written = {**WRITES, **rows, "ends": lambda x: x[:3].add_(x[-3:])}[write]
    torchstrata.reset()
    compiled = torchstrata.compile(written)
    for rows in (6, 7, 3, 5, 1, 4, 2):
        found = []
        for call in (written, compiled):
            x = LAYOUTS[layout](torch.arange(rows * 4.0).reshape(rows, 4))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a graph runs eagerly
                error = outcome(call, x)
            found.append((error if isinstance(error, type) else None, x.tolist()))
        assert found[0] == found[1]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("view", [torch.t, lambda y: y.t_(), lambda y: y.t_().t()])
def test_places_in_a_view(view, requires_grad):
    """Functionalisation failed at writes to them where gradients are wanted; aotgrad refuses
    them.
    """

    def function(x):
        y = x * 2
        part = view(y).as_strided((1, 4), (4, 1))
        part.mul_(x[:1])
        return y, part

    x = torch.arange(12.0).reshape(3, 4).requires_grad_(requires_grad)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = torchstrata.compile(function)(x)
    assert all("AG029" in str(warning.message) for warning in caught)
    torch.testing.assert_close(found, function(x))
