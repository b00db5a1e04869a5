"""Queries that share a head of keys become its rows, where nothing tells them apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from loopir import Options, compile_graph
from loopir.ir.program import ExternCall
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace

BATCH, HEADS, GROUPS, LENGTH, DEPTH = 2, 6, 3, 7, 8


def repeated(x: torch.Tensor, count: int) -> torch.Tensor:
    batch, heads, length, depth = x.shape
    wide = x[:, :, None].expand(batch, heads, count, length, depth)
    return wide.reshape(batch, heads * count, length, depth)


def attention(query, key, value, mask=None, **options):
    count = query.shape[1] // key.shape[1]
    return F.scaled_dot_product_attention(
        query, repeated(key, count), repeated(value, count), mask, **options
    )


def inputs(queries: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(BATCH, HEADS, queries, DEPTH), *[(BATCH, GROUPS, LENGTH, DEPTH)] * 2]
    return [torch.randn(shape).to(dtype) for shape in shapes]


MASK = torch.rand(BATCH, 1, 1, LENGTH) > 0.4
OF_HEADS = torch.rand(BATCH, HEADS, 1, LENGTH) > 0.4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("function", "queries", "rows"),
    [
        (attention, 1, HEADS // GROUPS),
        (lambda q, k, v: attention(q, k, v, MASK, scale=0.3), 1, HEADS // GROUPS),
        (lambda q, k, v: attention(q, k, v, MASK).transpose(1, 2) + 1, 1, HEADS // GROUPS),
        (lambda q, k, v: attention(q, k, v, MASK[0, 0]), 1, 1),
        (lambda q, k, v: attention(q, k, v, OF_HEADS), 1, 1),
        (lambda q, k, v: attention(q, k, v, is_causal=True), 1, 1),
        (attention, 2, 2),
        (lambda q, k, v: attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)), 1, 1),
    ],
)
def test_values(function, queries, rows, dtype):
    args = inputs(queries, dtype)
    with torch.no_grad():
        graph, expected = trace(function, *args), function(*args)
    options = Options(check=True, inference=True)
    host = compile_graph(graph, args, codegens={"cpu": EvaluatorCodeGenerator()}, options=options)
    (result,) = host(*args)
    torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)
    assert result.stride() == expected.stride()
    calls = [step.node for step in host.program.steps if isinstance(step, ExternCall)]
    assert [host.program.buffers[call.results[0]].shape[2] for call in calls] == [rows]
