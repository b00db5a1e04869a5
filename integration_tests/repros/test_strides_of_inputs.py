"""Strides of inputs where a dimension has one element."""

from __future__ import annotations

import torch
import torchstrata


def test_views_of_leaves_keep_their_strides():
    compiled = torchstrata.compile(lambda x: (x.stride(), x * 2), backend="eager")
    for rows in (2, 1):
        x = torch.ones(rows, 8, requires_grad=True)[:, 2:6]
        assert compiled(x)[0] == x.stride() == (8, 1)
