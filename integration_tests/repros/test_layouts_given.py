"""Layouts that a graph is compiled for and the ones that it meets."""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch import nn


def transpose_in_place(x: torch.Tensor) -> torch.Tensor:
    x[1:3] += 1
    x.t_()
    x[0] = 5
    return x.sum(0)


def add_dimension_in_place(x: torch.Tensor) -> torch.Tensor:
    x.unsqueeze_(0)
    return x.sum(1)


@pytest.mark.parametrize("program", [transpose_in_place, add_dimension_in_place])
def test_an_input_whose_layout_changes_in_place(program):
    given = torch.randn(4, 3)
    expected = given.clone()
    torch.testing.assert_close(torchstrata.compile(program)(given), program(expected))
    assert given.stride() == expected.stride()
    torch.testing.assert_close(given, expected)


def test_an_expanded_gradient_that_has_a_gradient():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(3, 4, requires_grad=True)

    def penalty(call: nn.Module) -> tuple[torch.Tensor, ...]:
        (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        return torch.autograd.grad(
            (gradient.norm(dim=1) - 1).square().mean(), list(model.parameters())[:3]
        )

    torch.testing.assert_close(penalty(torchstrata.compile(model)), penalty(model))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.as_strided((5, 6), (6, 1), 0) * 2,
        lambda x: (x * 1).as_strided((5, 6), (6, 1), 0) * 2,
        lambda x: (x + 1)[2:].clone().as_strided((3, 6), (6, 1), 0) * 2,
    ],
)
def test_elements_by_address_of_an_input_behind_others(program, dynamic, monkeypatch):
    monkeypatch.setattr(torchstrata.config, "fallback", "error")
    x = torch.arange(48.0).reshape(8, 6)[3:]
    assert torch.equal(torchstrata.compile(program, dynamic=dynamic)(x), program(x))


def test_slice_inverse_that_is_written_to():
    def program(piece: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        return torch.slice_inverse(piece, whole, 0, 1, 3, 1).mul_(2)

    results = []
    with pytest.warns(torchstrata.FallbackWarning, match="slice_inverse"):
        for call in (program, torchstrata.compile(program)):
            x = torch.arange(48.0).reshape(8, 6)
            results.append((call(x[1:3], x).clone(), x))
    torch.testing.assert_close(results[1], results[0])


def write_by_address(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    block, end = x.as_strided((2, 2), (2, 1), 3), x.as_strided((2,), (1,), 4)
    block.mul_(2)
    end.add_(1)
    return block * 1, end * 1


def read_what_was_written(x: torch.Tensor) -> torch.Tensor:
    x[1:].add_(1)
    return x.as_strided((2, 2), (2, 1), storage_offset=3) * 1


def write_before_an_input(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((2,), (1,), 0).add_(10)


def replace_in_what_was_written(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return torch.as_strided_scatter(x, torch.full((2,), 9.0), (2,), (1,), 3)


def read_by_keyword(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return torch.as_strided(input=x, size=(2,), stride=(1,), storage_offset=3) * 1


def write_behind_a_view(x: torch.Tensor) -> torch.Tensor:
    window = x.view(2, -1).as_strided((2,), (1,), 3)
    torch._foreach_add_([x], 1.0)
    return window + 1


@pytest.mark.filterwarnings("ignore:a compiled graph runs eagerly")
@pytest.mark.parametrize(
    "program",
    [
        write_by_address, read_what_was_written, write_before_an_input, replace_in_what_was_written,
        read_by_keyword,
        write_behind_a_view,
    ],
)  # fmt: skip
def test_writes_by_address_to_an_input_behind_others(program):
    call = torchstrata.compile(program)
    # only of an input that begins with its storage an address tells the place: the second runs
    # eagerly
    for start in (0, 2):
        given, expected = torch.arange(12.0), torch.arange(12.0)
        fallbacks = torchstrata.counters["fallbacks"]
        window = slice(start, start + 10)  # of one size: the first graph serves both
        torch.testing.assert_close(call(given[window]), program(expected[window]), rtol=0, atol=0)
        assert torch.equal(given, expected)
        assert torchstrata.counters["fallbacks"] == fallbacks + (start > 0)


@pytest.mark.parametrize("read", [lambda x: x[:1, None], lambda x: x.sin()[:1, None]])
def test_two_views_of_one_expanded_row(read):
    """The second one had other strides in its dimension of one element."""

    def function(x):
        row = read(x).expand(1, 4)
        return row.narrow(0, 0, 1), row[:1]

    expected, found = function(torch.ones(3)), torchstrata.compile(function)(torch.ones(3))
    assert [view.stride() for view in found] == [view.stride() for view in expected]


WRITES_TO_ROWS = {
    "clamp": lambda m: m.clamp_(min=0.5),
    "mul": lambda m: m.mul_(2),
    "masked_fill": lambda m: m.masked_fill_(m > 1, 2.0),
    "index_add": lambda m: m.index_add_(0, torch.tensor([0]), m * 1),
    "setitem": lambda m: m[:, 1:].add_(1),
}


@pytest.mark.parametrize("write", WRITES_TO_ROWS)
def test_a_row_among_gaps_that_is_written(write):
    """Writes to what is made like it gave dimensions of one element other strides."""

    def function(x):
        made = torch.full_like(x, 0.5)
        WRITES_TO_ROWS[write](made)
        return made

    x = torch.ones(1, 8)[:, 2:6]
    found, expected = torchstrata.compile(function)(x), function(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
