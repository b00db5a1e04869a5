"""What an operator on bags of embeddings returns beside the bags is what eager's kernel leaves
there.
"""

from __future__ import annotations

import itertools

import pytest
import torch
import torchstrata

FORMS = {
    "full": torch.ops.aten._embedding_bag,
    "forward_only": torch.ops.aten._embedding_bag_forward_only,
}
CASES = [
    (mode, last, padding, weighted)
    for mode, last, padding, weighted in itertools.product(
        (0, 1, 2), (False, True), (-1, 2), (False, True)
    )
    if mode == 0 or not weighted
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64", "transposed"])
@pytest.mark.parametrize("count", [0, 8])
def test_secondary_results_are_eagers(monkeypatch, form, kind, count):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")
    op = FORMS[form]
    table = torch.arange(35.0).reshape(7, 5).to(getattr(torch, kind, torch.float32))
    table = table.t().contiguous().t() if kind == "transposed" else table
    indices = torch.tensor([1, 2, 2, 4, 6, 0, 3, 2])[:count]

    def program(table, indices, bounds, weights):
        return [
            op(table, indices, bounds[last], False, m, False, weights if w else None, last, p)
            for m, last, p, w in CASES
        ]

    starts = torch.tensor([0, 3, 3, 5]) if count else torch.zeros(4, dtype=torch.int64)
    bounds = {False: starts, True: torch.cat([starts, torch.tensor([count])])}
    weights = torch.ones(count, dtype=table.dtype)
    found = torchstrata.compile(program, fullgraph=True)(table, indices, bounds, weights)
    for case, results, expected in zip(CASES, found, program(table, indices, bounds, weights)):
        for result, wanted in zip(results, expected, strict=True):
            assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape), case
            assert torch.allclose(result, wanted), case
