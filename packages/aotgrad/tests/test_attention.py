"""Masks that attention can do without."""

from __future__ import annotations

import pytest
import torch
from aotgrad import aot_function
from torch.nn.functional import scaled_dot_product_attention as attention
from torch.testing import assert_close


def _everything(i, j):
    return (i >= 0) & (j >= 0)


def _causal(i, j):
    return j <= i


def _window(i, j):
    return (j <= i) & (j > i - 3)


@pytest.mark.parametrize(
    "rule, rows, expected",
    [
        (_everything, 8, ((), {})),
        (_causal, 8, ((0.0, True), {})),
        (_causal, 5, ((0.0, True), {})),
        (_window, 8, None),
    ],
)
def test_a_mask_made_of_positions(rule, rows, expected):
    def program(q, k):
        i, j = torch.arange(rows)[:, None], torch.arange(8)[None]
        return attention(q, k, k, rule(i, j).expand(2, 1, rows, 8))

    calls = []

    def compiler(gm, _):
        calls.extend(n for n in gm.graph.nodes if "attention" in str(n.target))
        return gm

    q, k = torch.randn(2, 3, rows, 4), torch.randn(2, 3, 8, 4)
    assert_close(aot_function(program, forward_compiler=compiler)(q, k), program(q, k))
    (call,) = calls
    if expected is None:
        assert call.kwargs["attn_mask"] is not None
    else:
        assert (call.args[3:], dict(call.kwargs)) == expected


def test_a_mask_that_reads_an_input_stays():
    def program(q):
        return attention(q, q, q, (q[:, :1, :, :1] > 0).expand(2, 1, 8, 8))

    masks = []

    def compiler(gm, _):
        masks.extend(n.kwargs["attn_mask"] for n in gm.graph.nodes if "attention" in str(n.target))
        return gm

    q = torch.randn(2, 3, 8, 4)
    assert_close(aot_function(program, forward_compiler=compiler)(q), program(q))
    assert masks and masks[0] is not None


@pytest.mark.parametrize(
    "program, laid_out_anew",
    [(attention, False), (lambda *given: attention(*given).contiguous(), True)],
)
def test_tangents_come_as_attention_left_its_result(program, laid_out_anew):
    """cuDNN's backward keeps, for given sizes, the strides of the gradient that it saw first."""
    given = []

    def compiler(gm, _):
        given.extend(
            n for n in gm.graph.find_nodes(op="placeholder") if n.name.startswith("tangent")
        )
        return gm

    def run(call):
        leaves = [
            torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(i)).transpose(1, 2)
            for i in range(3)
        ]
        result = call(*(leaf.requires_grad_() for leaf in leaves))
        (result.transpose(1, 2).flatten(2) * torch.arange(12)).sum().backward()
        return result, *(leaf.grad for leaf in leaves)

    results = [
        run(aot_function(program, forward_compiler=lambda gm, _: gm, backward_compiler=compiler)),
        run(program),
    ]
    assert_close(*results)
    assert results[0][0].is_contiguous() == laid_out_anew
    assert [n.meta["val"].stride() for n in given] == [(60, 4, 12, 1)]
