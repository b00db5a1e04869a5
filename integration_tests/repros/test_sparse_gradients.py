"""Sparse gradients that were added to others went into kernels, although they have no memory of
their own.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchstrata

PROGRAMS = {
    "once": lambda w, i: F.embedding(i, w, sparse=True).sin().sum(),
    "twice": lambda w, i: (
        F.embedding(i, w, sparse=True) * F.embedding(i + 1, w, sparse=True)
    ).sum(),
    "tied": lambda w, i: (F.embedding(i, w, sparse=True) @ w.t()).sum(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_equal_eager(name):
    gradients = []
    for call in (PROGRAMS[name], torchstrata.compile(PROGRAMS[name])):
        w = torch.linspace(-1, 1, 15).reshape(5, 3).requires_grad_()
        call(w, torch.tensor([0, 1, 1])).backward()
        gradients.append(w.grad)
    assert gradients[1].is_sparse == gradients[0].is_sparse
    torch.testing.assert_close(gradients[1].to_dense(), gradients[0].to_dense())
