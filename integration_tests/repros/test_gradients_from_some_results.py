"""Zeros went backward from results that the loss does not use: times infinity they were NaN."""

from __future__ import annotations

import itertools

import pytest
import torch
import torchstrata

PROGRAMS = {
    "inverse": lambda w: (1 / w, w * 2),
    "root of what is returned": lambda w: (lambda y: (y.sqrt(), y * 3))(w * w),
    "losses": lambda w: (w.log().sum(), (w * w).sum()),
    "three": lambda w: (1 / w, w.sqrt(), w.exp()),
    "norm": lambda w: (w[:1].norm(), w.sum()),
    "a hidden state": lambda w: (lambda h: (h, (h * 0 + w).sin()))(w.rsqrt()),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_unused_results_take_no_part(name, dynamic):
    compiled = torchstrata.compile(PROGRAMS[name], fullgraph=True, dynamic=dynamic)
    count = len(PROGRAMS[name](torch.ones(3)))
    for places in (p for n in range(1, count + 1) for p in itertools.combinations(range(count), n)):
        gradients = []
        for call in (PROGRAMS[name], compiled):
            w = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
            results = call(w)
            sum(results[i].sum() for i in places).backward()
            gradients.append(w.grad)
        torch.testing.assert_close(gradients[1], gradients[0], equal_nan=True)


def test_a_program_of_the_store(tmp_path):
    with torchstrata.config.patch(cache_dir=str(tmp_path)):
        for _ in range(2):
            torchstrata.reset()
            w = torch.tensor([0.0, 1.0], requires_grad=True)
            torchstrata.compile(PROGRAMS["inverse"])(w)[1].sum().backward()
            assert torch.equal(w.grad, torch.full((2,), 2.0))
