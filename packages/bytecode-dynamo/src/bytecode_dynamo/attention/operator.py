"""The operator ``bytecode_dynamo::attention``, its gradient and their dense meaning.

``functions`` is the text (``symshapes.text.functions``) of the graphs ``score``, ``score_gradient``
and ``mask``; each may be missing: the identity, and everything visible. ``blocks`` are the tensors
of a BlockMask: counts and indices of partial and of full blocks by query block, then the same by
key block; without full blocks the first two and the fifth and sixth; or none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from symshapes.text.functions import parse_functions

LIBRARY = torch.library.Library("bytecode_dynamo", "FRAGMENT")
_COMMON = (
    "Tensor[] captured, Tensor[] blocks, SymInt query_block, SymInt key_block, str functions, "
    "float scale"
)
_FORWARD = f"(Tensor query, Tensor key, Tensor value, {_COMMON}) -> (Tensor, Tensor)"
_BACKWARD = (
    "(Tensor grad, Tensor? grad_sums, Tensor query, Tensor key, Tensor value, Tensor out, "
    f"Tensor sums, {_COMMON}) -> (Tensor, Tensor, Tensor)"
)

functions_of = lru_cache(256)(parse_functions)
"""The graphs of a text by name."""


def result_like(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Memory for the output: heads and positions in the order of the query's."""
    batch, heads, length, _ = query.shape
    if query.transpose(1, 2).is_contiguous():
        return query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)
    return query.new_empty((batch, heads, length, value.shape[-1]))


def _positions(shape: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    sizes = [[size if k == dim else 1 for k in range(4)] for dim, size in enumerate(shape)]
    return [
        torch.arange(size, device=device, dtype=torch.int32).view(own)
        for size, own in zip(shape, sizes)
    ]


def _scores(
    query: torch.Tensor, key: torch.Tensor, captured: Any, functions: str, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The scaled products, the scores, and where a key is visible."""
    graphs, groups = functions_of(functions), query.shape[1] // key.shape[1]
    keys = key.float().repeat_interleave(groups, 1)
    products = query.float() @ keys.transpose(-2, -1) * scale
    places = _positions(products.shape, query.device)
    scores, mask = products, None
    if "score" in graphs:
        (scores,) = graphs["score"](products, *places, *captured)
        scores = scores.expand(products.shape)
    if "mask" in graphs:
        (mask,) = graphs["mask"](*places, *captured)
        mask = mask.expand(products.shape)
        scores = torch.where(mask, scores, -math.inf)
    return products, scores, mask


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, captured: Any, blocks: Any,
    query_block: int, key_block: int, functions: str, scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention from a matrix of all scores."""
    _, scores, _ = _scores(query, key, captured, functions, scale)
    values = value.float().repeat_interleave(query.shape[1] // key.shape[1], 1)
    sums = scores.logsumexp(-1)
    out = torch._safe_softmax(scores, -1) @ values
    return result_like(query, value).copy_(out), sums


def attend_backward(
    grad: torch.Tensor, grad_sums: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor,
    value: torch.Tensor, out: torch.Tensor, sums: torch.Tensor, captured: Any, blocks: Any,
    query_block: int, key_block: int, functions: str, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The gradients of query, key and value from a matrix of all scores."""
    products, scores, mask = _scores(query, key, captured, functions, scale)
    (batch, heads, *_), kv_heads = query.shape, key.shape[1]
    groups = heads // kv_heads
    finite = torch.where(sums.isneginf(), math.inf, sums)
    weights = torch.exp(scores - finite[..., None])
    grad, values = grad.float(), value.float().repeat_interleave(groups, 1)
    delta = (grad * out.float()).sum(-1)
    delta = delta if grad_sums is None else delta - grad_sums
    slope = weights * (grad @ values.transpose(-2, -1) - delta[..., None])
    graph = functions_of(functions).get("score_gradient")
    if graph is not None:
        places = _positions(products.shape, query.device)
        (slope,) = graph(slope, products, *places, *captured)
    slope = slope if mask is None else torch.where(mask, slope, 0.0)
    slope = slope * scale
    by_query = slope @ key.float().repeat_interleave(groups, 1)

    def of_keys(rows: torch.Tensor) -> torch.Tensor:
        return rows.view(batch, kv_heads, groups, *rows.shape[2:]).sum(2)

    by_key = of_keys(slope.transpose(-2, -1) @ query.float())
    by_value = of_keys(weights.transpose(-2, -1) @ grad)
    results = zip((query, key, value), (by_query, by_key, by_value))
    query, key, value = (torch.empty_like(like).copy_(found) for like, found in results)
    return query, key, value


def _attend_meta(query: Any, key: Any, value: Any, *others: Any) -> Any:
    sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return result_like(query, value), sums


def _backward_meta(
    grad: Any, grad_sums: Any, query: Any, key: Any, value: Any, *others: Any
) -> Any:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, captured, blocks, *ctx.others = inputs
    ctx.counts = len(captured), len(blocks)
    ctx.save_for_backward(query, key, value, *output, *captured, *blocks)


def _backward(ctx: Any, grad: Any, grad_sums: Any) -> Any:
    query, key, value, out, sums, *rest = ctx.saved_tensors
    captured, blocks = rest[: ctx.counts[0]], rest[ctx.counts[0] :]
    found = torch.ops.bytecode_dynamo.attention_backward(
        grad, grad_sums, query, key, value, out, sums, captured, blocks, *ctx.others
    )
    lists = ([None] * count for count in ctx.counts)
    return (*found, *lists, *(None for _ in ctx.others))


for overload in ("", ".dense"):  # the second keeps its meaning where devices have kernels
    LIBRARY.define(f"attention{overload}{_FORWARD}")
    LIBRARY.define(f"attention_backward{overload}{_BACKWARD}")
    LIBRARY.impl(f"attention{overload}", attend, "CompositeExplicitAutograd")
    LIBRARY.impl(f"attention_backward{overload}", attend_backward, "CompositeExplicitAutograd")
    LIBRARY.impl(f"attention{overload}", _attend_meta, "Meta")
    LIBRARY.impl(f"attention_backward{overload}", _backward_meta, "Meta")
torch.library.register_autograd(
    "bytecode_dynamo::attention", _backward, setup_context=_save, lib=LIBRARY
)
ATTENTION = torch.ops.bytecode_dynamo.attention.default
