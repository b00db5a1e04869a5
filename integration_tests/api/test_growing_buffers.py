"""Programs whose inputs are cut from buffers: a compilation for the first call, one for all other
lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
import torchstrata
from hypothesis import given, settings
from torch import Tensor

Calls = Iterator[tuple[Tensor, ...]]
Program = tuple[Callable[..., Any], Callable[[range], Calls]]
PROGRAMS: dict[str, Program] = {}
CAPACITY = 128


def program(calls: Callable[[range], Calls]) -> Callable[[Callable[..., Any]], None]:
    """Registers a function with the arguments of its calls, one for each length."""

    def register(function: Callable[..., Any]) -> None:
        PROGRAMS[function.__name__] = function, calls

    return register


@program(lambda lengths: ((torch.randn(4, n + 9)[:, :8],) for n in lengths))
def width_of_the_buffer(x: Tensor) -> Tensor:
    return (x * 2 + 1).sum(1)


@program(lambda lengths: ((torch.randn(4, CAPACITY)[:, :n],) for n in lengths))
def prefix(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


@program(lambda lengths: ((torch.randn(4, n + n % 7)[:, :n],) for n in lengths))
def prefix_of_a_growing_buffer(x: Tensor) -> Tensor:
    return x.cos() @ x.T


def _caches(lengths: range) -> Calls:
    keys, values = torch.randn(2, 2, 4, CAPACITY, 16)
    return ((torch.randn(2, 4, 1, 16), keys[:, :, :n], values[:, :, :n]) for n in lengths)


@program(_caches)
def cropped_cache(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, keys, values)


@program(lambda lengths: ((torch.randn(2, 4, n, 16), torch.randn(2, 4, 1, 16)) for n in lengths))
def appended_cache(keys: Tensor, key: Tensor) -> Tensor:
    return torch.cat((keys, key), 2)


@program(lambda lengths: ((torch.randn(2, 4, 1, 16), torch.randn(2, n, 4, 16)) for n in lengths))
def transposed_cache(query: Tensor, keys: Tensor) -> Tensor:
    return query @ keys.permute(0, 2, 3, 1)


def _padded(lengths: range) -> Calls:
    for n in lengths:
        yield torch.randn(3, (n + 7) // 8 * 8, 5)[:, :n], torch.tensor([n, n - 1, 1])


@program(_padded)
def padded_batch(x: Tensor, lengths: Tensor) -> Tensor:
    mask = torch.arange(x.shape[1])[None] < lengths[:, None]
    return (x * mask[..., None]).sum(1)


@program(
    lambda lengths: ((torch.randn(1, 3, 20 + n % 13, 30 + n)[..., :16, :16],) for n in lengths)
)
def cropped_image(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1).relu().mean((2, 3))


@program(lambda lengths: ((torch.randn(n, 8), torch.randn(n + n // 6, 8)) for n in lengths))
def sizes_that_part(queries: Tensor, keys: Tensor) -> Tensor:
    return (queries @ keys.T).softmax(-1).sum(0)


@program(lambda lengths: ((torch.zeros(4, CAPACITY)[:, :n], torch.randn(4, n)) for n in lengths))
def written_slice(buffer: Tensor, x: Tensor) -> Tensor:
    return buffer.copy_(x) + 1


@program(lambda lengths: ((torch.randn(9, n)[:, 1],) for n in lengths))
def column(x: Tensor) -> Tensor:
    return x.sum() + x * x


@program(lambda lengths: ((torch.randn(3 * n)[::3],) for n in lengths))
def every_third(x: Tensor) -> Tensor:
    return x.cumsum(0)


@program(lambda lengths: ((torch.randn(8 * n)[::n],) for n in lengths))
def growing_step(x: Tensor) -> Tensor:
    return x.sin()


@program(lambda lengths: ((torch.randn(n + 1, n)[:n],) for n in lengths))
def diagonal_of_a_square(x: Tensor) -> Tensor:
    return torch.diagonal(x) * 2


@program(lambda lengths: ((torch.randn(2, 400)[:, 100 - n // 2 : 100 + n],) for n in lengths))
def window(x: Tensor) -> Tensor:
    return x.std(1)


@program(lambda lengths: ((torch.randn(3, n + 5, 8).requires_grad_()[:, :n],) for n in lengths))
def training(x: Tensor) -> Tensor:
    return (x * x.mean(1, keepdim=True)).square().mean()


def _pairs(lengths: range) -> Calls:
    for n in lengths:
        yield torch.randn(4, n + n % 3)[:, :n], torch.randn(4, n + n % 5)[:, :n]


@program(_pairs)
def two_buffers(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def _heads(lengths: range) -> Calls:
    for n in lengths:
        parts = torch.randn(2, n, 96).split(32, -1)
        yield tuple(part.view(2, n, 4, 8).transpose(1, 2) for part in parts)


@program(_heads)
def split_heads(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, keys, values, is_causal=True)


@program(lambda lengths: ((torch.randint(50, (3, CAPACITY))[:, :n],) for n in lengths))
def tokens(ids: Tensor) -> Tensor:
    return F.embedding(ids, torch.arange(200.0).view(50, 4)).sum(1)


@program(lambda lengths: ((torch.randn(2, 3, n + 4)[..., 2:-2],) for n in lengths))
def pooled(x: Tensor) -> Tensor:
    return F.max_pool1d(x, 2) + F.adaptive_avg_pool1d(x, 4).sum(-1, keepdim=True)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_two_compilations_serve_all_lengths(name: str, count: int) -> None:
    function, calls = PROGRAMS[name]
    torchstrata.reset()
    compiled = torchstrata.compile(function)
    for args in calls(range(4, 4 + count)):
        expected = function(*(x.clone() if name == "written_slice" else x for x in args))
        result = compiled(*args)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        assert result.stride() == expected.stride()
        if result.requires_grad:
            result.backward()
    counters = torchstrata.counters
    assert counters["graphs"] <= 2 and counters["fallbacks"] == counters["graph_breaks"] == 0


@st.composite
def _cut(draw: st.DrawFn, rank: int) -> Tensor:
    """A tensor with gaps, repeated or permuted dimensions."""
    sizes = [draw(st.integers(1, 5)) for _ in range(rank)]
    gaps = [draw(st.integers(0, 2)) for _ in range(rank)]
    order = draw(st.permutations(range(rank)))
    buffer = torch.arange(float(torch.Size(map(sum, zip(sizes, gaps))).numel()))
    whole = buffer.view([*map(sum, zip(sizes, gaps))])
    cut = whole[tuple(slice(size) for size in sizes)].permute(*order)
    return cut[..., :1].expand(*cut.shape[:-1], 3) if draw(st.integers(0, 4)) == 0 else cut


def _mixed(x: Tensor) -> tuple[Tensor, ...]:
    return x * 2 + 1, x.sum(-1), x.transpose(0, 1).clone(), x.reshape(-1).cumsum(0)


@settings(max_examples=6)
@given(rank=st.integers(2, 3), data=st.data())
def test_results_of_any_layout(rank: int, data: st.DataObject) -> None:
    torchstrata.reset()
    compiled = torchstrata.compile(_mixed)
    for _ in range(5):
        x = data.draw(_cut(rank))
        for result, expected in zip(compiled(x), _mixed(x), strict=True):
            torch.testing.assert_close(result, expected)
            assert result.stride() == expected.stride()
