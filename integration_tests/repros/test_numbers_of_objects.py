"""torch hashes a tensor by its id: the two are one number, which capture took for two."""

from __future__ import annotations

import torch
import torchstrata


def program(x):
    y = x + 1
    return y, hash(x) == id(x), hash(y) == id(y), hash(x) in {id(x): 1}, hash(x) == hash(y)


def test_hash_and_id_of_a_tensor():
    x = torch.ones(2)
    compiled = torchstrata.compile(program, backend="eager", fullgraph=True)
    assert compiled(x)[1:] == program(x)[1:] == (True, True, True, False)
