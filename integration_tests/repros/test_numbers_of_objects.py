"""torch hashes a tensor by its id: the two are one number, which capture took for two. A subclass may
have another hash.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata


def program(x):
    y = x + 1
    return y, hash(x) == id(x), hash(y) == id(y), hash(x) in {id(x): 1}, hash(x) == hash(y)


def test_hash_and_id_of_a_tensor():
    x = torch.ones(2)
    compiled = torchstrata.compile(program, backend="eager", fullgraph=True)
    assert compiled(x)[1:] == program(x)[1:] == (True, True, True, False)


class OwnHash(torch.Tensor):
    def __hash__(self):
        return 5


class ById(torch.Tensor):
    pass


def of_subclass(x):
    return x + 1, hash(x) == id(x), hash(x) == 5, hash(x) == x.__hash__()


@pytest.mark.parametrize("cls", [OwnHash, ById, torch.nn.Parameter])
def test_hash_of_a_subclass(cls):
    x = torch.ones(2)
    x = torch.nn.Parameter(x) if cls is torch.nn.Parameter else x.as_subclass(cls)
    compiled = torchstrata.compile(of_subclass, backend="eager")
    assert compiled(x)[1:] == of_subclass(x)[1:] == (cls is not OwnHash, cls is OwnHash, True)
