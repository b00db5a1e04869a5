"""Masks of scaled_dot_product_attention that do not fit, and attention over nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchstrata


def attend(q: torch.Tensor, k: torch.Tensor, mask: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("q", "mask"),
    [
        ((2, 2, 4, 8), ones(3, 4, 4)),
        ((2, 2, 4, 8), ones(4, 5)),
        ((2, 2, 4, 8), ones(4)),
        ((2, 2, 4, 8), ones(1, 1, 2, 4, 4)),
        ((1, 2, 4, 8), ones(2, 1, 4, 4)),
        ((2, 4, 8), ones(2, 2, 4, 4)),
        ((2, 2, 1, 8), ones(4, 1)),
        ((2, 2, 4, 8), ones(4, 4, dtype=torch.int64)),
        ((2, 2, 4, 8), ones(4, 4, dtype=torch.float16)),
        ((2, 2, 4, 8), ones(4, 4, dtype=torch.complex64)),
        ((2, 2, 4, 8), 3),
    ],
)
def test_mask_that_does_not_fit_is_eagers_error(q: tuple[int, ...], mask: Any) -> None:
    x = torch.rand(q)
    with pytest.raises(Exception) as expected:
        attend(x, x, mask)
    with pytest.raises(type(expected.value)) as found:
        torchstrata.compile(attend)(x, x, mask)
    assert str(found.value) == str(expected.value)


def test_mask_that_broadcasts_the_scores_names_the_line_under_fullgraph() -> None:
    x = torch.rand(2, 4, 8)
    with pytest.raises(Exception, match="doesn't match the broadcast shape") as caught:
        torchstrata.compile(attend, fullgraph=True)(x, x, ones(2, 2, 4, 4))
    assert __file__ in str(caught.value)


def test_masks_that_fit_grouped_heads_and_missing_dimensions() -> None:
    def f(q, k, mask):
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask, enable_gqa=True)

    q, k = torch.rand(2, 4, 3, 8), torch.rand(2, 2, 5, 8)
    for mask in (ones(1, 5), ones(4, 3, 5), ones(2, 1, 1, 5)):
        torch.testing.assert_close(torchstrata.compile(f)(q, k, mask), f(q, k, mask))
    x = torch.rand(1, 1, 1, 8)
    torch.testing.assert_close(
        torchstrata.compile(attend)(x, q, ones(2, 4, 1, 3)), attend(x, q, ones(2, 4, 1, 3))
    )


@pytest.mark.parametrize("queries", [0, 4])
@pytest.mark.parametrize("keys", [0, 4])
def test_attention_over_nothing(queries: int, keys: int) -> None:
    q, k = (torch.rand(2, 2, n, 8, requires_grad=True) for n in (queries, keys))
    results = []
    for run in (attend, torchstrata.compile(attend)):
        out = run(q, k, None)
        results.append((out, *torch.autograd.grad(out.sum(), (q, k))))
    torch.testing.assert_close(*results)
