"""Nested tensors of jagged layout: different ragged batches share a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchstrata
from torch import nn

LENGTHS = [(3, 5, 2), (4, 2, 6), (2, 2), (7, 3, 4, 5), (9, 2), (2, 3, 4, 5, 6), (8, 8), (2, 9, 3),
           (6, 5), (4, 4, 3)]  # fmt: skip


def jagged(lengths: tuple[int, ...], *, requires_grad: bool = False) -> Any:
    generator = torch.Generator().manual_seed(sum(lengths))
    parts = [torch.randn(n, 8, generator=generator) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=requires_grad)


def built(x: Any) -> Any:
    return torch.nested.nested_tensor_from_jagged(x.values() * 2, x.offsets()) + x


def gated(x: Any) -> Any:
    a, b = x.chunk(2, -1)
    return a * b.sigmoid()


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda x: x * 2 + x.sin(),
    "values": lambda x: x.values() * 2,
    "sum over the ragged dimension": lambda x: x.sum(1),
    "softmax": lambda x: torch.softmax(x, -1).sum(-1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "padded": lambda x: torch.nested.to_padded_tensor(x, 0.0).relu(),
    "transposed": lambda x: x.unflatten(-1, (2, 4)).transpose(1, 2) * 2,
    "flatten": lambda x: x.unflatten(-1, (2, 4)).sin().flatten(-2),
    "batch size": lambda x: x * x.size(0) + x.offsets().sum(),
    "made in the program": built,
    "two results": lambda x: (x * 2, x.cos()),
    "padded, values first": lambda x: torch.nested.to_padded_tensor(x, 1.0, (x.size(0), 12, 8)) * 2,
    "softmax over the ragged dimension": lambda x: torch.softmax(x, 1),
    "mean over the ragged dimension": lambda x: x - x.mean(1, keepdim=True),
    "dense operand": lambda x: x + torch.ones(x.size(0), 1, 8),
    "rms_norm": lambda x: F.rms_norm(x, (8,), torch.ones(8)),
    "chunk": gated,
    "reshape": lambda x: x.reshape(x.size(0), -1, 4, 2).sin(),
    "from a list": lambda x: torch.nested.as_nested_tensor([x.values()] * 2, layout=torch.jagged),
}


def leaves(result: Any) -> Iterator[torch.Tensor]:
    for value in result if isinstance(result, tuple) else (result,):
        yield from (value.values(), value.offsets()) if value.is_nested else (value,)


def assert_one_graph(compilations: int = 2) -> None:
    counters = torchstrata.counters
    assert counters["graph_breaks"] == counters["fallbacks"] == 0
    assert 1 <= counters["graphs"] <= compilations


@pytest.mark.parametrize("name", PROGRAMS)
def test_inference(name: str) -> None:
    torchstrata.reset()
    program = PROGRAMS[name]
    compiled = torchstrata.compile(program)
    for lengths in LENGTHS:
        x = jagged(lengths)
        for got, expected in zip(leaves(compiled(x)), leaves(program(x)), strict=True):
            torch.testing.assert_close(got, expected)
    assert_one_graph(3 if name in ("batch size", "made in the program") else 2)


def test_results_have_the_ragged_size_of_inputs() -> None:
    torchstrata.reset()
    compiled = torchstrata.compile(lambda x: (x * 2, x + 1))
    for lengths in LENGTHS[:3]:
        x = jagged(lengths)
        first, second = compiled(x)
        torch.testing.assert_close((first + second + x).values(), x.values() * 4 + 1)
    assert_one_graph()


def test_ragged_sizes_are_compared() -> None:
    def program(x: Any, y: Any) -> Any:
        return x * 2 if x.size(1) == y.size(1) else x * 3

    torchstrata.reset()
    compiled = torchstrata.compile(program)
    x, y = jagged((3, 5)), jagged((3, 5))
    for pair in ((x, x + 1), (x, y), (x, x + 1), (y, x)):
        torch.testing.assert_close(compiled(*pair).values(), program(*pair).values())
    assert torchstrata.counters["fallbacks"] == torchstrata.counters["graph_breaks"] == 0


def test_lengths() -> None:
    def program(values: Any, offsets: Any, lengths: Any) -> Any:
        return torch.nested.nested_tensor_from_jagged(values, offsets, lengths) * 2

    torchstrata.reset()
    compiled = torchstrata.compile(program)
    for lengths in LENGTHS:
        x = jagged(lengths)
        args = x.values(), x.offsets(), x.offsets().diff() - 1
        got, expected = compiled(*args), program(*args)
        for name in ("_values", "_offsets", "_lengths"):
            torch.testing.assert_close(getattr(got, name), getattr(expected, name))
    assert_one_graph(3)


def test_embedding() -> None:
    torchstrata.reset()
    embedding = nn.Embedding(10, 4)
    compiled = torchstrata.compile(embedding)
    for lengths in LENGTHS:
        ids = torch.nested.nested_tensor([torch.arange(n) for n in lengths], layout=torch.jagged)
        got, expected = compiled(ids), embedding(ids)
        torch.testing.assert_close(got.values(), expected.values())
    assert_one_graph()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


@pytest.mark.parametrize("is_leaf", [True, False], ids=["leaf", "result"])
def test_training(is_leaf: bool) -> None:
    torchstrata.reset()
    torch.manual_seed(0)
    block = Block()
    compiled = torchstrata.compile(block)
    for lengths in LENGTHS:
        found = []
        for model in (compiled, block):
            block.zero_grad()
            x = jagged(lengths, requires_grad=True)
            result = model(x if is_leaf else x * 2)
            result.values().square().sum().backward()
            gradients = [p.grad.clone() for p in block.parameters()]
            found.append([result.values(), x.grad.values(), *gradients])
        for got, expected in zip(*found, strict=True):
            torch.testing.assert_close(got, expected)
    assert_one_graph()


@pytest.mark.parametrize("name", ["padded", "softmax over the ragged dimension", "rms_norm", "chunk",
                                  "reshape", "flatten", "dense operand"])  # fmt: skip
def test_gradients(name: str) -> None:
    torchstrata.reset()
    program = PROGRAMS[name]
    compiled = torchstrata.compile(program)
    for lengths in LENGTHS:
        found = []
        for function in (compiled, program):
            x = jagged(lengths, requires_grad=True)
            result = next(leaves(function(x)))
            (result * torch.linspace(0, 1, result.numel()).view(result.shape)).sum().backward()
            found.append(x.grad.values())
        torch.testing.assert_close(*found)
    assert_one_graph()


def test_sum_over_the_ragged_dimension_has_a_gradient() -> None:
    compiled = torchstrata.compile(lambda x: x.sum(1))
    x = jagged((3, 5, 2), requires_grad=True)
    compiled(x).square().sum().backward()
    expected = [(2 * part.sum(0)).expand_as(part) for part in x.detach().unbind()]
    torch.testing.assert_close(x.grad.values(), torch.cat(expected))


def several(x: Any) -> Any:
    return x * 2, x.sin(), x.values() * 3


@pytest.mark.parametrize("given", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_gradients_of_some_of_several_results(given: tuple[int, ...]) -> None:
    torchstrata.reset()
    compiled = torchstrata.compile(several)
    for lengths in LENGTHS[:3]:
        found = []
        for function in (compiled, several):
            x = jagged(lengths, requires_grad=True)
            results = [next(leaves(result)) for result in function(x)]
            sum(results[i].square().sum() for i in given).backward()  # type: ignore[union-attr]
            found.append(x.grad.values())
        torch.testing.assert_close(*found)
    assert_one_graph()


def test_other_offsets_raise() -> None:
    torchstrata.reset()
    compiled = torchstrata.compile(lambda x, y: x + y)
    with pytest.raises(RuntimeError, match="cannot call binary pointwise function"):
        compiled(jagged((3, 5)), jagged((3, 5)))


def test_rows_break_the_graph() -> None:
    def program(x: Any) -> Any:
        return x[0] * 2, sum(row.sum() for row in x.unbind())

    torchstrata.reset()
    compiled = torchstrata.compile(program)
    for lengths in LENGTHS[:3]:
        torch.testing.assert_close(compiled(jagged(lengths)), program(jagged(lengths)))
    assert torchstrata.counters["graph_breaks"]
