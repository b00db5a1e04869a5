"""Operations whose results nobody reads did not run: they draw random numbers, and raise for
indices out of range.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchstrata

from integration_tests.repros.outcome import outcome

DRAWS = {
    "rand": lambda x: torch.rand(1),
    "randperm": lambda x: torch.randperm(4),
    "filled": lambda x: x.clone().uniform_(),
    "dropout": lambda x: F.dropout(x),
    "multinomial": lambda x: torch.multinomial(x.abs() + 1, 1),
}
RAISES = {
    "index": lambda x, i: x[i],
    "index, then more": lambda x, i: (x[i] + 1).sin(),
    "gather": lambda x, i: x.gather(0, i),
    "index_select": lambda x, i: torch.index_select(x, 0, i),
    "embedding": lambda x, i: F.embedding(i, x[:, None]),
    "scatter": lambda x, i: x.scatter(0, i, 1.0),
    "written": lambda x, i: x.clone().index_put_((i,), x[0]),
    "cross entropy": lambda x, i: F.cross_entropy(x[None], i[:1]),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("result", [lambda x: 3, lambda x: x + 1])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("fallback_random", [False, True])
def test_generators_advance(name, result, requires_grad, fallback_random):
    def function(x):
        DRAWS[name](x)
        return result(x)

    x = torch.ones(3, requires_grad=requires_grad)
    compiled = torchstrata.compile(
        function, fullgraph=True, options={"fallback_random": fallback_random}
    )
    after = []
    for call in (function, compiled, compiled):
        torch.manual_seed(0)
        call(x)
        after.append(torch.rand(1))
    assert not torch.equal(after[1], torch.rand(1, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(after[1], after[2])
    assert not fallback_random or torch.equal(after[0], after[1])


def test_draws_without_a_graph_of_their_device():
    """A layer drop on a GPU asks the CPU's generator; a program without tensors is the like of it
    that every machine has.
    """

    def function():
        torch.rand(3)
        torch.randint(5, (2,), dtype=torch.int32)
        return 3

    compiled = torchstrata.compile(function, fullgraph=True)
    after = []
    for call in (function, compiled, compiled):
        torch.manual_seed(0)
        call()
        after.append(torch.rand(1))
    assert after[0] == after[1] == after[2]


@pytest.mark.parametrize("name", RAISES)
@pytest.mark.parametrize("result", [lambda x: 3, lambda x: x + 1])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_indices_out_of_range(name, result, requires_grad):
    def function(x, i):
        RAISES[name](x, i)
        return result(x)

    x = torch.rand(3, requires_grad=requires_grad)
    compiled = torchstrata.compile(function, fullgraph=True)
    compiled(x, torch.tensor([1, 0]))
    with pytest.raises((IndexError, RuntimeError)):
        function(x, torch.tensor([7, 0]))
    with pytest.raises((IndexError, RuntimeError)):
        compiled(x, torch.tensor([7, 0]))


SAME_EVERYWHERE = {
    "zeros": lambda x, i: torch.zeros(3)[i],
    "embedding": lambda x, i: F.embedding(i, torch.ones(3, 2)),
    "gather": lambda x, i: x.new_full((3,), 2.0).gather(0, i),
    "expanded": lambda x, i: x[:1].expand(3)[i],
}


@pytest.mark.parametrize("name", SAME_EVERYWHERE)
def test_indices_into_what_is_the_same_everywhere(name):
    """No address depends on the index, which is checked nevertheless."""
    call, x = SAME_EVERYWHERE[name], torch.rand(3)
    compiled = torchstrata.compile(call, fullgraph=True)
    inside, outside = torch.tensor([2, 0]), torch.tensor([0, 3])
    assert torch.equal(compiled(x, inside), call(x, inside))
    for each in (call, compiled):
        with pytest.raises((IndexError, RuntimeError)):
            each(x, outside)


@pytest.mark.parametrize("result", [lambda x: 3, lambda x: x + 1])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("before", [lambda x: x, lambda x: x + 1])
def test_addresses_out_of_range(result, requires_grad, dynamic, before):
    def function(x):
        before(x).as_strided((2, 4), (4, 1))
        return result(x)

    compiled = torchstrata.compile(function, dynamic=dynamic)
    for rows in (3, 2, 1, 0):
        x = torch.ones(rows, 4, requires_grad=requires_grad)
        expected, actual = outcome(function, x), outcome(compiled, x)
        assert (
            actual is RuntimeError
            if rows < 2
            else torch.equal(torch.as_tensor(actual), torch.as_tensor(expected))
        )
        assert (expected is RuntimeError) == (rows < 2)


OVERWRITTEN = {
    "zeros": lambda x, y, i: x.index_put_((i,), y[:2]).zero_(),
    "a number": lambda x, y, i: x.index_put_((i,), y[:2]).fill_(2.0),
    "others": lambda x, y, i: x.index_put_((i,), y[:2]).copy_(y),
    "others through a view": lambda x, y, i: x.index_put_((i,), y[:2])[:].copy_(y),
    "others through as_strided": lambda x, y, i: (
        x.index_put_((i,), y[:2]).as_strided((3, 2), (2, 1)).copy_(y)
    ),
    "drawn": lambda x, y, i: x.index_put_((i,), y[:2]).uniform_(),
    "its sizes": lambda x, y, i: torch.zeros_like(y[i]),
    "what was computed from it": lambda x, y, i: (y[i] * 2 + 1).zero_(),
}


@pytest.mark.parametrize("overwrite", OVERWRITTEN.values(), ids=OVERWRITTEN)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_indices_of_what_is_overwritten_are_checked(overwrite, requires_grad):
    """An operator that reads nothing but the layout of its operand seemed to need it, and went with
    what computes it.
    """
    torchstrata.reset()
    compiled = torchstrata.compile(overwrite, fullgraph=True)
    for indices in ([0, 1], [0, 7]):
        found = []
        for call in (overwrite, compiled):
            torch.manual_seed(0)
            y = torch.arange(6.0).reshape(3, 2).requires_grad_(requires_grad)
            result = outcome(call, torch.ones(3, 2), y, torch.tensor(indices))
            found.append(result.shape if isinstance(result, torch.Tensor) else result)
        assert found[0] == found[1]
