"""``.data`` replaces the memory of what autograd has saved: the backward graph read it with the
strides from before.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

from integration_tests.repros.outcome import outcome

LAYOUTS = {
    "columns": lambda x: x[:, 2:6],
    "transposed": lambda x: x[:, :3].t(),
    "dense": lambda x: x * 1,
}
CHANGES = {
    "dense": lambda x: x.data + 1,
    "transposed": lambda x: x.data.t().contiguous().t(),
    "expanded": lambda x: x.data[:1].expand(x.shape),
    "fewer": lambda x: x.data[:2].clone(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_the_values_there(layout, change, dynamic):
    def run(call):
        leaf = torch.arange(24.0).reshape(3, 8).requires_grad_()
        x = LAYOUTS[layout](leaf)
        result = call(x)
        x.data = CHANGES[change](x)
        raised = outcome(result.sum().backward)
        return raised, None if raised or leaf.grad is None else leaf.grad.tolist()

    def function(x):
        return x.clamp(2, 20) * 2

    assert run(torchstrata.compile(function, dynamic=dynamic)) == run(function)


EXCHANGES = {
    "more": lambda y: torch.cat([y, y]),
    "transposed": lambda y: y.data.t(),
    "converted": lambda y: y.data.double(),
}


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("inner", [False, True])
def test_data_of_another_layout_after_a_read(exchange, inner):
    """The graph's input took the layout of what its data were exchanged for."""

    def function(x):
        y = (x * 3).contiguous() if inner else x
        before = y.sum()
        y.data = EXCHANGES[exchange](y)
        between = y * 2
        y.data = EXCHANGES[exchange](between)
        return before, between, y + 1, y

    def run(call):
        x = torch.arange(6.0).reshape(2, 3)
        return [call(x) for _ in range(2)], x

    torch.testing.assert_close(
        run(torchstrata.compile(function, fullgraph=True)), run(function), atol=0, rtol=0
    )


def test_layouts_between_pieces():
    """A later piece took what had been written with another layout for what it was when it was
    made.
    """

    def function(x):
        y = x * 1
        before = y.sum()
        y.t_()
        y.data = y.data + 1
        transposed = y * 2
        y.unsqueeze_(0)
        outer = y + 1
        y.data = y.data[:, :2]
        y.squeeze_(0)
        grown = torch.zeros(0, 4)
        torch.cat([x, x], out=grown)
        inner = y * 3
        y.data = torch.ones(5)
        return before, transposed, outer, inner, y + 1, y, grown.roll(1, 0)

    x = torch.arange(12.0).reshape(3, 4)
    for found, expected in zip(torchstrata.compile(function, fullgraph=True)(x), function(x)):
        assert (found.stride(), found.tolist()) == (expected.stride(), expected.tolist())


def replaced(x):
    x.data = x.data + 1


PROGRAMS = {
    "a sum saved beside": lambda x: x * x.sum(),
    "an extreme": lambda x: torch.cat([x, x])[::2].max() - x.min(),
    "a norm": lambda x: x.square().sum().sqrt(),
    "the result in its own derivative": lambda x: x / (x.abs() + 1),
    "computed alike in both directions": lambda x: x.sin() * x.cos(),
}


@pytest.mark.parametrize("write", [replaced, lambda x: x.data.add_(1)], ids=["replaced", "written"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("is_leaf", [True, False])
def test_what_eager_saved_is_not_computed_again(name, is_leaf, write):
    """Backward computed some values again from the new data where eager mode had saved them, beside
    others.
    """

    def run(call):
        leaf = torch.linspace(-1, 2, 12).reshape(3, 4).requires_grad_()
        x = leaf if is_leaf else leaf * 2
        result = call(x)
        write(x)
        result.sum().backward()
        return leaf.grad

    torch.testing.assert_close(run(torchstrata.compile(PROGRAMS[name])), run(PROGRAMS[name]))


def by_numpy(x):
    squares = x**2
    x.detach().numpy()[0] = 2
    return squares


def by_data(x):
    sines = x.sin()
    x.data.mul_(2)
    return sines, x.cos()


def by_copy(x):
    cubes = x**3
    y = x.detach() + 1
    x.data.copy_(y)
    return cubes, x.cos() * y, (x.exp() * x).sum()


def by_product(x):
    squares = x**2
    x.data.addmm_(torch.ones(x.shape[0], 2), torch.ones(2, x.shape[1]))
    return squares


@pytest.mark.parametrize("backend, dynamic", [("aot_eager", True), ("torchstrata", False)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", [by_numpy, by_data, by_copy, by_product])
def test_data_written_in_the_graph_and_after_it(function, layout, dynamic, backend):
    """The graph's new value of an input was saved, where eager saves the input."""

    def run(call):
        leaf = torch.arange(24.0).div(8).reshape(3, 8).requires_grad_()
        x = LAYOUTS[layout](leaf)
        results = call(x)
        x.data.add_(1)
        sum(y.sum() for y in (results if isinstance(results, tuple) else (results,))).backward()
        return leaf.grad, x.detach()

    compiled = torchstrata.compile(function, backend=backend, dynamic=dynamic)
    torch.testing.assert_close(run(compiled), run(function))
