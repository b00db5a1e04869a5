"""Dropout whose mask backward draws again: what a product of backward reads is kept, the rest is
drawn.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from aotgrad import aot_function, run_eager
from aotgrad.graphs import dropout_masks as masks


def before_product(x, w):
    return F.dropout((x @ w).relu(), 0.25) @ w


def before_cast(x, w):
    return F.dropout((x @ w).relu(), 0.25).bfloat16() @ w.bfloat16()


def before_sum(x, w):
    return F.dropout(x @ w, 0.25) + x


@pytest.mark.parametrize(
    ("f", "kept"),
    [(before_product, True), (before_cast, True), (before_sum, False)],
    ids=lambda f: getattr(f, "__name__", ""),
)
def test_what_is_kept(f, kept, monkeypatch):
    monkeypatch.setattr(masks, "DEVICES", frozenset({"cpu"}))
    texts = {}
    x, w = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
    call = aot_function(
        f,
        forward_compiler=run_eager,
        passes=(masks.redraw_masks,),
        on_artifact=lambda name, text: texts.setdefault(name, text),
    )
    call(x, w).sum().backward()
    saved, _, recomputed = texts["partition"].partition("recomputed")
    assert ("where" in saved or "to_copy" in saved) is kept and "where" not in recomputed
    assert "seeded_mask" in texts["backward"]
