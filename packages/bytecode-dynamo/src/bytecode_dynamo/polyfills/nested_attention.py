"""Attention of nested tensors of jagged layout, as dense attention under a mask.

torch picks a kernel by what data and devices are, in Python that a graph cannot hold.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.backends.cuda import math_sdp_enabled
from torch.nested._internal.nested_tensor import nested_view_from_values_offsets
from torch.nested._internal.sdpa import _autocast, _validate_sdpa_input


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """``scaled_dot_product_attention``; NotImplemented for what torch's form decides."""
    query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
    _validate_sdpa_input(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if not _is_dense(query, key, value, is_causal):
        return NotImplemented
    q, k, v = (x.transpose(1, 2).values() for x in (query, key, value))
    if not query.is_cuda:
        _check_covered(q, query._offsets)
        _check_covered(k, key._offsets)
    longest, longest_key = _longest(query), _longest(key)
    mask = _key_mask(key._offsets, longest, longest_key, is_causal)
    dense = F.scaled_dot_product_attention(
        padded(q, query._offsets, longest).transpose(1, 2),
        padded(k, key._offsets, longest_key).transpose(1, 2),
        padded(v, key._offsets, longest_key).transpose(1, 2),
        attn_mask=mask,
        dropout_p=dropout_p,
        scale=scale,
    )
    values = packed(dense.transpose(1, 2), query._offsets, q.size(0))
    result = nested_view_from_values_offsets(
        values,
        query._offsets,
        min_seqlen=query._maybe_min_seqlen,
        max_seqlen=query._maybe_max_seqlen,
    )
    return result.transpose(1, 2)


def _is_dense(query: Any, key: Any, value: Any, is_causal: bool) -> bool:
    """Whether eager computes attention of rows with one number of heads in each."""
    given = (query, key, value)
    if any(x.dim() != 4 or x._ragged_idx != 2 or x._lengths is not None for x in given):
        return False
    if key.size(2) != value.size(2) or (is_causal and query.size(2) != key.size(2)):
        return False
    for x in (key, value):
        if x.size(0) != query.size(0) or x.size(1) != query.size(1):
            return False
    if query.size(3) != key.size(3):
        return False
    if 0 in (query._values.size(1), key._values.size(1)):
        return False
    if query.is_cuda:
        return True
    is_contiguous = all(x.transpose(1, 2).is_contiguous() for x in given)
    return math_sdp_enabled() and is_contiguous and not is_causal


def _check_covered(values: Any, offsets: Any) -> None:
    """Raise RuntimeError where rows leave values out, as eager does on the CPU."""
    torch._assert_async(offsets[-1] == values.size(0), "the rows do not sum to the values' size")


def _longest(x: Any) -> Any:
    """The length of the longest row."""
    known = x._maybe_max_seqlen
    return max(longest_row(x._offsets), 2) if known is None else known  # 1 would broadcast


def longest_row(offsets: Any) -> Any:
    """The length of the longest row, which a rule computes."""
    return offsets.diff().max().item()


def padded(values: Any, offsets: Any, size: int, padding: float = 0.0) -> Any:
    """Rows of a length, from rows one after another. (torch's operator has no derivative.)"""
    places = offsets[:-1, None] + torch.arange(size, device=offsets.device)
    held = places < offsets[1:, None]
    rows = values[places.clamp(max=values.size(0) - 1)]
    return torch.where(held.view(*held.shape, *(1 for _ in values.shape[1:])), rows, padding)


def packed(dense: Any, offsets: Any, total: int) -> Any:
    """The inverse of ``padded``."""
    places = torch.arange(total, device=offsets.device)
    rows = _rows(places, offsets)
    return dense[rows, (places - offsets[rows]).clamp(max=dense.size(1) - 1)]


def _rows(places: Any, offsets: Any) -> Any:
    """The rows in which places of the values are."""
    return torch.bucketize(places, offsets[1:], right=True).clamp(max=offsets.size(0) - 2)


def _key_mask(offsets: Any, longest: int, longest_key: int, is_causal: bool) -> Any:
    """Which keys a query sees. Rows without keys, whose values are zero, see all: the softmax of
    nothing would be NaN.
    """
    lengths = offsets.diff()[:, None, None, None]
    positions = torch.arange(longest_key, device=offsets.device)
    mask = positions < lengths
    if is_causal:
        mask = mask & (positions <= torch.arange(longest, device=offsets.device)[:, None])
    return mask | (lengths == 0)
