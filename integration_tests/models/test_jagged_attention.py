"""Attention of nested tensors of jagged layout."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchstrata
from torch import nn

from integration_tests.models.test_jagged import assert_one_graph

LENGTHS = [(3, 5, 2), (4, 2, 6), (2, 2), (7, 3, 4, 5), (9, 2), (2, 3, 4, 5, 6), (8, 8), (2, 9, 3),
           (6, 5), (4, 4, 3)]  # fmt: skip
KEYS = [(2, 4, 6), (3, 3, 2), (5, 2), (2, 2, 2, 9), (3, 7), (6, 2, 3, 4, 5), (2, 3), (5, 5, 5),
        (2, 7), (9, 2, 2)]  # fmt: skip


def values(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(sum(lengths), 8, generator=torch.Generator().manual_seed(sum(lengths)))


def knows_longest(lengths: tuple[int, ...]) -> Any:
    parts = values(lengths).split(lengths)
    return torch.nested.nested_tensor(list(parts), layout=torch.jagged, requires_grad=True)


def of_offsets(lengths: tuple[int, ...]) -> Any:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    nested = torch.nested.nested_tensor_from_jagged(values(lengths), offsets)
    return nested.detach().requires_grad_()


MAKERS = {"longest known": knows_longest, "offsets only": of_offsets}


def heads(x: Any) -> Any:
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


def attend(x: Any) -> Any:
    q, k, v = heads(x), heads(x.sin()), heads(x * 2)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)


def attend_to(x: Any, y: Any) -> Any:
    q, k, v = heads(x), heads(y), heads(y * 2)
    return F.scaled_dot_product_attention(q, k, v, scale=0.3).transpose(1, 2).flatten(-2)


def trained(program: Callable[..., Any], *inputs: Any) -> list[torch.Tensor]:
    result = program(*inputs)
    result.values().square().sum().backward()
    return [result.values(), result.offsets(), *(x.grad.values() for x in inputs)]


@pytest.mark.parametrize("kind", MAKERS)
def test_attention_in_a_row(kind: str) -> None:
    torchstrata.reset()
    make = MAKERS[kind]
    compiled = torchstrata.compile(attend)
    for lengths in LENGTHS:
        got, expected = (trained(f, make(lengths)) for f in (compiled, attend))
        torch.testing.assert_close(got, expected)
    assert_one_graph(2)
    with torch.no_grad():
        x = make(LENGTHS[0])
        torch.testing.assert_close(compiled(x).values(), attend(x).values())


@pytest.mark.parametrize("kind", MAKERS)
def test_attention_to_other_rows(kind: str) -> None:
    torchstrata.reset()
    make = MAKERS[kind]
    compiled = torchstrata.compile(attend_to)
    for lengths, others in zip(LENGTHS, KEYS):
        got, expected = (trained(f, make(lengths), make(others)) for f in (compiled, attend_to))
        torch.testing.assert_close(got, expected)
    assert_one_graph(3)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("lengths", [(3, 0, 2), (0, 4), (4, 0), (5,), (1, 1)], ids=str)
def test_empty_and_single_rows(kind: str, lengths: tuple[int, ...]) -> None:
    torchstrata.reset()
    make = MAKERS[kind]
    compiled = torchstrata.compile(attend)
    got, expected = (trained(f, make(lengths)) for f in (compiled, attend))
    torch.testing.assert_close(got, expected)
    assert_one_graph(1)


def test_queries_without_keys() -> None:
    compiled = torchstrata.compile(attend_to)
    x, y = knows_longest((3, 4, 2)), knows_longest((2, 0, 2))
    result, _, *gradients = trained(compiled, x, y)
    assert not result[3:7].any()
    assert all(gradient.isfinite().all() for gradient in gradients)


def causal(x: Any) -> Any:
    return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), is_causal=True)


def masked(x: Any) -> Any:
    return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), torch.ones(2, 2))


@pytest.mark.filterwarnings("ignore::torchstrata.errors.FallbackWarning")
@pytest.mark.parametrize("program", [causal, masked], ids=["causal", "masked"])
def test_what_eager_refuses(program: Callable[..., Any]) -> None:
    torchstrata.reset()
    with pytest.raises((RuntimeError, ValueError)) as expected:
        program(knows_longest((3, 5)))
    with pytest.raises(expected.type) as found:
        torchstrata.compile(program)(knows_longest((3, 5)))
    assert str(found.value) == str(expected.value)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv, self.out = nn.Embedding(20, 8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)])
        self.up, self.down, self.drop = nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.0)

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        q, k, v = (heads(y.contiguous()) for y in self.qkv(self.norms[0](x)).chunk(3, -1))
        x = x + self.drop(
            self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        )
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def test_transformer_layer() -> None:
    torchstrata.reset()
    torch.manual_seed(0)
    layer = Layer()
    models = copy.deepcopy(layer), layer
    functions = torchstrata.compile(models[0]), layer
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    for lengths in LENGTHS:
        ids = [torch.arange(n) * 7 % 20 for n in lengths]
        batch = torch.nested.nested_tensor(ids, layout=torch.jagged)
        for _ in range(2):
            found = []
            for model, function, optimizer in zip(models, functions, optimizers):
                optimizer.zero_grad()
                result = function(batch)
                result.values().square().mean().backward()
                found.append([result.values(), *(p.grad for p in model.parameters())])
                optimizer.step()
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert_one_graph(2)


def test_rows_that_leave_values_out_raise() -> None:
    offsets = torch.tensor([0, 3, 5])
    for known in ({}, {"min_seqlen": 2, "max_seqlen": 3}):
        x = torch.nested.nested_tensor_from_jagged(torch.randn(8, 8), offsets, **known)
        for program in (attend, torchstrata.compile(attend)):
            with pytest.raises(RuntimeError, match="sum"):
                program(x)


def test_a_row_without_numbers_stays_alone() -> None:
    offsets = torch.tensor([0, 3, 5])
    values = torch.randn(5, 8)
    values[4] = float("nan")
    x = torch.nested.nested_tensor_from_jagged(values, offsets)
    result = torchstrata.compile(attend, fullgraph=True)(x)
    torch.testing.assert_close(result.values(), attend(x).values(), equal_nan=True)
    assert not result.values()[:3].isnan().any()
