"""Offers calls of attention to code generators. Where keys and values are repeated for each query
head, the offered operator takes them as they were before.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from primops import TensorMeta
from torch import fx

from loopir.backend import Attention, CodeGenerator, OffersAttention

from .attention import attended_strides
from .grouped_queries import repeated
from .match import (
    add_call,
    apply_to_calls,
    arguments_of,
    has_format,
    in_format,
    meta_of,
    remove_dead,
    same_shape,
    tensor_of,
)

CALLS = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)


def offer_attention(gm: fx.GraphModule, codegens: Mapping[str, CodeGenerator]) -> int:
    """Replaces the calls of attention for which the code generator of their device has an operator;
    returns how many.
    """
    offering = {d: each for d, each in codegens.items() if isinstance(each, OffersAttention)}
    if not offering:
        return 0

    def offered_attention(node: fx.Node) -> bool:
        codegen = offering.get(tensor_of(node.args[0]).device.type)
        return codegen is not None and _offer(node, codegen)

    count = apply_to_calls(gm, dict.fromkeys(CALLS, offered_attention))
    if count:
        remove_dead(gm)
    return count


def _offer(node: fx.Node, codegen: OffersAttention) -> bool:
    schema: Any = node.target._schema  # type: ignore[union-attr]
    given = dict(zip((entry.name for entry in schema.arguments), arguments_of(node), strict=True))
    results = _results(node)
    if not results or given["dropout_p"] or given.get("return_debug_mask"):
        return False
    key, value = given["key"], given["value"]
    alone = repeated(key), repeated(value)
    keys, values = (key, value) if None in alone else alone
    operands = (given["query"], keys, values, given.get("attn_bias", given.get("attn_mask")))
    described = _described(operands, given)
    op = None if described is None else codegen.offer_attention(described)
    if described is None or op is None:
        return False
    batch, heads, queries, _ = described.query.shape
    shape = (batch, heads, queries, described.value.shape[-1])
    made = replace(described.query, shape=shape, strides=attended_strides(shape))
    is_dense = has_format(tensor_of(results[0]), torch.contiguous_format)
    if not is_dense and not _is_attended(tensor_of(results[0])):
        return False
    found = add_call(node, op, (*operands, described.is_causal, described.scale), made)
    if not _is_attended(tensor_of(results[0])):
        found = in_format(found, torch.contiguous_format, node)
    for result in results:
        result.replace_all_uses_with(found)
    for dead in dict.fromkeys((*node.users, node)):
        node.graph.erase_node(dead)
    return True


def _results(node: fx.Node) -> list[fx.Node]:
    """The nodes with the output; none if another result is read."""
    if not isinstance(node.meta["val"], tuple | list):
        return [node]
    read = [user for user in node.users if user.users]
    is_output = all(user.target is operator.getitem and user.args[1] == 0 for user in read)
    return read if is_output else []


def _described(operands: tuple[Any, ...], given: Mapping[str, Any]) -> Attention | None:
    """The call; None for one that broadcasts, or has other dims than batch and heads."""
    query, key, value = map(tensor_of, operands[:3])
    mask = meta_of(operands[3])
    metas = (query, key, value)
    if any(meta.ndim != 4 for meta in metas):
        return None
    if mask is not None and (mask.ndim > 4 or mask.device != query.device):
        return None
    scale: Any = given["scale"]
    (_, heads, _, depth), kv_heads = query.shape, key.shape[1]
    if not (isinstance(heads, int) and isinstance(kv_heads, int) and isinstance(depth, int)):
        return None
    if not (heads and kv_heads and depth):
        return None
    scale = depth**-0.5 if scale is None else scale
    fits = (
        all(same_shape(meta.shape[:1], query.shape[:1]) for meta in metas)
        and same_shape(key.shape[:3], value.shape[:3])
        and same_shape(key.shape[3:], query.shape[3:])
        and heads % kv_heads == 0
        and len({(meta.dtype, meta.device) for meta in metas}) == 1
        and isinstance(scale, int | float)
    )
    return Attention(*metas, mask, bool(given["is_causal"]), float(scale)) if fits else None


def _is_attended(meta: TensorMeta) -> bool:
    """Whether the strides are ``attended_strides``, apart from dims of size 1."""
    shape, strides = ((x[0], x[2], x[1], x[3]) for x in (meta.shape, meta.strides))
    return has_format(replace(meta, shape=shape, strides=strides), torch.contiguous_format)
