"""``flex_attention`` as one operator: its functions as graphs, and the operator's dense meaning."""

import bytecode_dynamo as bd
import pytest
import torch
from bytecode_dynamo.attention import operator
from bytecode_dynamo.attention.tracing import Refused, trace_function, trace_gradient
from bytecode_dynamo.builtins import attention
from symshapes.text.functions import format_functions, parse_functions
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

LENGTH = 32


@pytest.fixture
def captured(monkeypatch):
    """``captured(function, *args)``: the result, and the operators that the graph calls."""
    monkeypatch.setattr(attention, "DENSE_DEVICES", set())

    def run(function, *args):
        graphs = []

        def backend(gm, inputs):
            graphs.append(gm)
            return gm.forward

        result = bd.optimize(backend, fullgraph=True)(function)(*args)
        return result, [node for node in graphs[-1].graph.nodes if node.op == "call_function"]

    return run


def causal(b, h, q, k):
    return q >= k


def blocks_of(mask, size=16):
    return create_block_mask(mask, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=size)


def operands(heads=4, kv_heads=4, length=LENGTH):
    return [torch.randn(2, count, length, 16) for count in (heads, kv_heads, kv_heads)]


def calls_of(nodes, target):
    return [node for node in nodes if node.target is target]


def test_score_and_mask_functions_are_arguments_of_one_operator(captured):
    bias, documents = torch.randn(4, 2 * LENGTH), torch.arange(LENGTH) // 10
    mask = blocks_of(lambda b, h, q, k: (q >= k) & (documents[q] == documents[k]))

    def function(query, key, value):
        score = lambda s, b, h, q, k: 20 * torch.tanh(s / 20) + bias[h, q - k]  # noqa: E731
        return flex_attention(query, key, value, score, mask)

    query, key, value = operands()
    result, nodes = captured(function, query, key, value)
    (call,) = calls_of(nodes, operator.ATTENTION)
    graphs = parse_functions(call.args[7])
    assert list(graphs) == ["score", "score_gradient", "mask"]
    assert len(call.args[3]) == 2
    assert len(call.args[4]) == 8
    place = torch.arange(LENGTH)
    scores = query @ key.transpose(-2, -1) / 4
    scores = 20 * torch.tanh(scores / 20) + bias[:, place[:, None] - place]
    visible = (place[:, None] >= place) & (documents[:, None] == documents)
    expected = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ value
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("mask", [None, causal])
def test_plain_and_causal_attention_are_the_librarys(captured, heads, mask):
    blocks = None if mask is None else blocks_of(mask)

    def function(query, key, value):
        return flex_attention(query, key, value, block_mask=blocks, enable_gqa=True)

    query, key, value = operands(kv_heads=heads)
    result, nodes = captured(function, query, key, value)
    (call,) = calls_of(nodes, torch.nn.functional.scaled_dot_product_attention)
    assert call.kwargs["is_causal"] is (mask is not None)
    key, value = (x.repeat_interleave(4 // heads, 1) for x in (key, value))
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=mask is not None
    )
    torch.testing.assert_close(result, expected)


def test_sums_come_from_the_operator(captured):
    def function(query, key, value):
        return flex_attention(query, key, value, return_aux=AuxRequest(lse=True))

    query, key, value = operands()
    (out, aux), nodes = captured(function, query, key, value)
    assert len(calls_of(nodes, operator.ATTENTION)) == 1
    scores = query @ key.transpose(-2, -1) / 4
    torch.testing.assert_close(out, scores.softmax(-1) @ value)
    torch.testing.assert_close(aux.lse, scores.logsumexp(-1))


def test_functions_that_are_not_elementwise_use_all_scores(captured):
    def function(query, key, value):
        score = lambda s, b, h, q, k: s - s.mean()  # noqa: E731
        return flex_attention(query, key, value, score)

    query, key, value = operands()
    result, nodes = captured(function, query, key, value)
    assert not calls_of(nodes, operator.ATTENTION)
    scores = query @ key.transpose(-2, -1) / 4
    torch.testing.assert_close(result, (scores - scores.mean()).softmax(-1) @ value)


def test_a_bias_that_is_learned_uses_all_scores(captured):
    bias = torch.randn(4, requires_grad=True)

    def function(query, key, value):
        return flex_attention(query, key, value, lambda s, b, h, q, k: s + bias[h] * k)

    result, nodes = captured(function, *operands())
    assert not calls_of(nodes, operator.ATTENTION)
    assert result.requires_grad


def test_texts_of_functions_do_not_depend_on_sizes():
    texts = {
        format_functions({"mask": trace_function(lambda b, h, q, k, t: t[q] == k, False, [table])})
        for table in (torch.arange(5), torch.arange(900))
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda s, b, h, q, k: s.sum(),
        lambda s, b, h, q, k: torch.rand_like(s),
        lambda s, b, h, q, k: s.expand(2, 1, 1, 1),
        lambda s, b, h, q, k: 3.0,
        lambda s, b, h, q, k: s.add_(1),
        lambda s, b, h, q, k: torch.ones(7)[q] + s,
    ],
)
def test_functions_of_more_than_an_element_are_refused(function):
    with pytest.raises(Refused):
        trace_function(function, True, [])
        trace_gradient(function, [])


def test_the_gradient_of_added_terms_is_that_of_the_result():
    assert trace_gradient(lambda s, b, h, q, k: s + q - k, []) is None


def test_gradients_of_the_operator_agree_with_those_of_all_scores():
    torch.manual_seed(0)
    functions = {
        "score": trace_function(lambda s, b, h, q, k: torch.tanh(s) * (q + 1), True, []),
        "score_gradient": trace_gradient(lambda s, b, h, q, k: torch.tanh(s) * (q + 1), []),
        "mask": trace_function(lambda b, h, q, k: (q >= k) & (q != 2), False, []),
    }
    text = format_functions(functions)
    query, key, value = (x.requires_grad_() for x in operands(4, 2, 5))
    out, sums = operator.ATTENTION(query, key, value, [], [], 0, 0, text, 0.5)
    assert (out[:, :, 2] == 0).all()
    assert sums[:, :, 2].isneginf().all()
    place = torch.arange(5)
    scores = query @ key.repeat_interleave(2, 1).transpose(-2, -1) * 0.5
    scores = torch.tanh(scores) * (place[:, None] + 1)
    visible = (place[:, None] >= place) & (place[:, None] != 2)
    scores = scores.masked_fill(~visible, -torch.inf)
    expected = torch._safe_softmax(scores, -1) @ value.repeat_interleave(2, 1)
    rows = [0, 1, 3, 4]
    weights = torch.randn_like(sums[:, :, rows])
    found = (out.square().sum(), (sums[:, :, rows] * weights).sum())
    wanted = (expected.square().sum(), (scores[:, :, rows].logsumexp(-1) * weights).sum())
    for one, other in zip(found, wanted):
        grads = torch.autograd.grad(one, [query, key, value], retain_graph=True)
        others = torch.autograd.grad(
            other, [query, key, value], retain_graph=True, allow_unused=True
        )
        for a, b in zip(grads, others):
            torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b)
