"""The reference evaluator."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from primops import PrimopsError, decompose, evaluate
from primops.testing import trace

X = torch.randn(4, 8)


def test_promotion_gives_the_exact_result():
    gm = decompose(trace(lambda x: F.softmax(F.gelu(x @ x.t()), -1), X.bfloat16()))
    (exact,) = evaluate(gm, [X.bfloat16()], promote_to=torch.float64)
    x = X.bfloat16().double()
    torch.testing.assert_close(exact, F.softmax(F.gelu(x @ x.t()), -1), rtol=1e-12, atol=0)


def test_every_node_is_shown_in_order():
    gm = decompose(trace(lambda x: (x + 1).exp(), X))
    seen = {}
    evaluate(gm, [X], on_node=lambda node, value: seen.update({node.name: value}))
    assert list(seen) == ["in0", "add", "exp"]
    assert torch.equal(seen["add"], X + 1)


def test_outputs_have_the_strides_of_the_graph():
    gm = decompose(trace(lambda x: (x.t() + 1, x.clone(memory_format=torch.contiguous_format)), X))
    transposed, plain = evaluate(gm, [X])
    assert transposed.stride() == (1, 8) and plain.stride() == (8, 1)


def test_results_of_one_element_keep_the_strides_of_the_graph():
    x = torch.randn(4).as_strided((1, 4), (0, 1)) + torch.zeros(1, 4)
    gm = decompose(trace(lambda x: x.as_strided((4, 1), (1, 0)) + 1, x))
    (result,) = evaluate(gm, [x])
    assert result.stride() == (x.as_strided((4, 1), (1, 0)) + 1).stride()


def test_constants_are_found():
    offset = torch.arange(8.0)
    gm = decompose(trace(lambda x: x + offset, X))
    assert torch.equal(evaluate(gm, [X])[0], X + offset)


def test_failure_names_the_node():
    gm = decompose(trace(lambda x: x @ x.t(), X))
    with pytest.raises(PrimopsError, match=r"(?s)mm.*node: %mm"):
        evaluate(gm, [X.double().bool()])
    with pytest.raises(PrimopsError, match="1 inputs, got 2"):
        evaluate(gm, [X, X])


def test_index_error_is_eagers():
    gm = decompose(trace(F.embedding, torch.tensor([1]), X))
    with pytest.raises(IndexError):
        evaluate(gm, [torch.tensor([9]), X])
