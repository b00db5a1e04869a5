"""The operator ``inductor_triton::attention``: ``scaled_dot_product_attention`` of few queries
whose heads share keys, which the graph would repeat in memory for the libraries' kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from .few_queries import CAUSAL, run_few
from .operator import ON_DEVICE
from .problem import DTYPES, SMALLEST, WIDEST
from .running import Kernels, Result, prepare

if TYPE_CHECKING:
    from loopir import Attention
    from torch._ops import OpOverload

_LIBRARY = torch.library.Library("inductor_triton", "DEF")
MASKS = (torch.bool, *DTYPES)


def result_like(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Memory for the result: ``[batch, queries, heads, width]``, transposed."""
    batch, heads, length, _ = query.shape
    return query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    is_causal: bool, scale: float, kernels: Kernels = ON_DEVICE,
) -> torch.Tensor:  # fmt: skip
    """Attention by generated kernels. ``mask`` has bools or numbers to add, and is broadcast;
    ``is_causal``: query ``q`` sees key ``k`` if ``k <= q``. A query that sees none has a result
    of 0.
    """
    call = prepare(query, key, value, [], [], 0, 0, CAUSAL if is_causal else "", scale)
    if isinstance(call, str):
        return _dense(query, key, value, mask, is_causal, scale)
    out = Result(result_like(query, value))
    run_few(call, mask, kernels, out.memory, query.new_empty(query.shape[:-1], dtype=torch.float32))
    return out.finish()


def _dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    is_causal: bool, scale: float,
) -> torch.Tensor:  # fmt: skip
    """The same by torch: on CPUs, and of tensors without elements."""
    found = F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=True
    )
    return result_like(query, value).copy_(found)


_LIBRARY.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float scale)"
    " -> Tensor"
)
_LIBRARY.impl("attention", attend, "CUDA")
_LIBRARY.impl("attention", _dense, "CPU")
_LIBRARY.impl("attention", lambda query, key, value, *_: result_like(query, value), "Meta")
ATTENTION: OpOverload = torch.ops.inductor_triton.attention.default
ATTENTION.direct = attend  # type: ignore[attr-defined] - hosts need no dispatcher


def offered(attention: Attention) -> OpOverload | None:
    """The operator for queries that share key heads and fill one small tile; None for others, which
    were not measured to gain.
    """
    query, key, value, mask = attention.query, attention.key, attention.value, attention.mask
    (_, heads, queries, depth), width = query.shape, value.shape[-1]
    sizes = [size for size in (heads, key.shape[1], queries, depth, width) if isinstance(size, int)]
    if len(sizes) < 5:  # a symbol
        return None
    groups = sizes[0] // sizes[1]
    is_small = sizes[2] * groups <= SMALLEST and max(sizes[3:]) <= WIDEST
    has_kernel = query.dtype in DTYPES and (mask is None or mask.dtype in MASKS)
    return ATTENTION if groups > 1 and is_small and has_kernel else None
