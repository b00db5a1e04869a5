"""Attention from capture to kernels: the operator's dense meaning and the kernels agree."""

import bytecode_dynamo as bd
import pytest
import torch
from bytecode_dynamo.attention import operator
from bytecode_dynamo.builtins import attention
from inductor_triton.attention.operator import attend, attend_backward
from inductor_triton.attention.running import Kernels, build_in_interpreter
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

LENGTH = 80
BIAS, DOCUMENTS = torch.randn(4, 2 * LENGTH), torch.arange(LENGTH) // 30


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q >= k) & (q - k < 20) & (q > 3)


def document(b, h, q, k):
    return (DOCUMENTS[q] == DOCUMENTS[k]) & causal(b, h, q, k)


def even(b, h, q, k):
    return ((q - k) % 4 == 0) & (k // 3 != h)


def alibi(s, b, h, q, k):
    return s - torch.exp2(-(h + 1) * 0.5) * (q - k).abs()


def capped(s, b, h, q, k):
    return 20 * torch.tanh(s / 20)


def biased(s, b, h, q, k):
    return s + BIAS[h, q - k]


CASES = {
    "causal": (None, causal), "window": (None, window), "documents": (biased, document),
    "even": (capped, even), "alibi": (alibi, causal), "bias": (biased, None),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels():
    pytest.importorskip("triton")
    return Kernels(build_in_interpreter)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_compute_what_the_operator_means(kernels, monkeypatch, name, dtype):
    monkeypatch.setattr(attention, "DENSE_DEVICES", set())
    torch.manual_seed(0)
    score, mask = CASES[name]
    blocks = None
    if mask is not None:
        blocks = create_block_mask(mask, 2, 4, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)
    shapes = ((2, 4, LENGTH, 16), (2, 2, LENGTH, 16), (2, 2, LENGTH, 32))
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    seen = []

    def backend(gm, examples):
        def run(*args):
            values = torch.fx.Interpreter(gm, garbage_collect_values=False)
            result = values.run(*args)
            (call,) = gm.graph.find_nodes(op="call_function", target=operator.ATTENTION)
            seen.append(torch.fx.map_arg(call.args, values.env.__getitem__))
            return result

        return run

    def function(query, key, value):
        return flex_attention(
            query, key, value, score, blocks, 0.3, enable_gqa=True, return_lse=True
        )

    out, sums = bd.optimize(backend, fullgraph=True)(function)(*inputs)
    ((query, key, value, *others),) = seen
    found = attend(query, key, value, *others, kernels=kernels)
    tolerance = (
        {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 0.02, "atol": 0.02}
    )
    torch.testing.assert_close(found[0], out, **tolerance)
    torch.testing.assert_close(found[1], sums, **tolerance)
    tangents = torch.randn_like(out), torch.randn_like(sums)
    saved = (*tangents, query, key, value, out, sums)
    wanted = operator.attend_backward(*saved, *others)
    for one, other in zip(attend_backward(*saved, *others, kernels=kernels), wanted):
        scale = other.float().abs().max().item()
        torch.testing.assert_close(one / scale, other / scale, **tolerance)
