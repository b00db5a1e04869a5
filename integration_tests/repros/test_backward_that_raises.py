"""Backward raises from the results from which eager raises, and from no others of the same
graph.
"""

from __future__ import annotations

import itertools

import pytest
import torch
import torchstrata


def overwritten(w):
    a = w.sin()
    squared = a * a
    a.add_(1)
    return squared, w * 2


def gone_backward(w):
    squared = w * w
    (found,) = torch.autograd.grad(squared.sum(), w)
    return squared, w * 3, found + w


PROGRAMS = {
    "a saved value is written": overwritten,
    "no derivative": lambda w: (w // 0.5, w * w, (w * w) // 0.5 + w),
    "no rule": lambda w: (w.unique(dim=0), w * 2),
    "both": lambda w: (*overwritten(w), w // 0.5),
    "backward inside": gone_backward,
    "all": lambda w: (w // 0.5, w // 0.25),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_errors_by_result(name, dynamic, tmp_path):
    def run(call, places):
        w = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
        results = call(w)
        flags = [r.requires_grad for r in results]
        try:
            sum(results[i].sum() for i in places).backward()
        except RuntimeError as error:
            return flags, type(error), str(error)[:40]
        return flags, w.grad.tolist()

    count = len(PROGRAMS[name](torch.ones(3, requires_grad=True)))
    with torchstrata.config.patch(cache_dir=str(tmp_path)):
        for _ in range(2):
            torchstrata.reset()
            compiled = torchstrata.compile(PROGRAMS[name], fullgraph=True, dynamic=dynamic)
            for places in (
                p for n in range(1, count + 1) for p in itertools.combinations(range(count), n)
            ):
                assert run(compiled, places) == run(PROGRAMS[name], places)
            assert torchstrata.counters["fallbacks"] == 0
