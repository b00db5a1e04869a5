"""Boolean masks as indices, read and written, are part of the graph in training as well: gradients
of what is written have data-dependent sizes on their way.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

from .outcome import outcome


def assigned(x, mask, y):
    z = x * 1
    z[mask] = y
    return z * z


def changed(x, mask, y):
    z = x * 1
    z[mask] += 1
    z[mask] *= y[0]
    return z * z


def columns(x, mask, y):
    z = x.repeat(3, 1)
    z[:, mask] = y
    return z * z


def read(x, mask, y):
    return x[mask].square().sum() * y.sum() + x.masked_select(mask).mean()


def multiplied(x, mask, y):
    """One more graph: eager mode broadcasts a size of 1."""
    return (x[mask] * y).sum()


def one_number(x, mask, y):
    z = x * 1
    z[mask] = y[0]
    return z * z


def accumulated(x, mask, y):
    return x.index_put((mask,), y, accumulate=True).square()


IN_ONE_GRAPH = [assigned, changed, columns, read, one_number, accumulated]


def observe(call, masks):
    found = []
    for mask in masks:
        x = torch.arange(1.0, 5.0).requires_grad_()
        y = (torch.arange(float(sum(mask))) + 2).requires_grad_()
        result = outcome(call, x, torch.tensor(mask), y)
        if isinstance(result, torch.Tensor):
            result.sum().backward()
            result = result.detach()
        found.append((result, x.grad, y.grad))
    return repr(found)


@pytest.mark.parametrize("backend", ["aot_eager", "torchstrata"])
@pytest.mark.parametrize(
    "program", [*IN_ONE_GRAPH, multiplied], ids=lambda program: program.__name__
)
def test_values_and_gradients_are_eagers(program, backend):
    masks = [(1, 0, 1, 0), (1, 0, 0, 1), (0, 1, 1, 1), (1, 1, 1, 1)]
    masks = [tuple(map(bool, mask)) for mask in masks]
    torchstrata.reset()
    compiled = torchstrata.compile(program, backend=backend)
    assert observe(compiled, masks) == observe(program, masks)
    assert torchstrata.counters["graph_breaks"] == (program is multiplied) * 2
    assert torchstrata.counters["fallbacks"] == 0


@pytest.mark.parametrize(
    "mask, values",
    [((True, False, True), 2), ((True, False, True, True), 2)],
    ids=["mask", "values"],
)
@pytest.mark.parametrize("program", [assigned, columns, accumulated])
def test_sizes_that_do_not_fit_raise_eagers_error(program, mask, values):
    compiled = torchstrata.compile(program)
    given = torch.ones(4), torch.tensor(mask), torch.ones(values, requires_grad=True)
    assert outcome(program, *given) is outcome(compiled, *given)
