"""``flex_attention`` on CUDA devices: generated kernels against attention in float64."""

from __future__ import annotations

import warnings

import pytest
import torch
import torchstrata
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q >= k) & (q - k < 100) & (q > 5)


def capped(s, b, h, q, k):
    return 20 * torch.tanh(s / 20)


def alibi(s, b, h, q, k):
    return s - torch.exp2(-(h + 1) * 0.5) * (q - k).abs()


def operands(dtype, depth, heads=4, kv_heads=2, length=384, keys=None):
    sizes = ((heads, length), (kv_heads, keys or length), (kv_heads, keys or length))
    shape = [(2, count, rows, depth) for count, rows in sizes]
    return [torch.randn(s, device="cuda").to(dtype).requires_grad_() for s in shape]


def expected(query, key, value, score, mask, scale=None):
    groups = query.shape[1] // key.shape[1]
    query, key, value = (x.double() for x in (query, key, value))
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (scale or query.shape[-1] ** -0.5)
    sizes = [[n if i == d else 1 for i in range(4)] for d, n in enumerate(scores.shape)]
    places = [torch.arange(max(s), device="cuda").view(s) for s in sizes]
    scores = scores if score is None else score(scores, *places)
    if mask is not None:
        scores = torch.where(mask(*places), scores, -torch.inf)
    return torch._safe_softmax(scores, -1) @ value, scores.logsumexp(-1)


def check(found, wanted, tolerance):
    for one, other in zip(found, wanted, strict=True):
        is_finite = other.isfinite()
        error = (one.double() - other)[is_finite].norm() / other[is_finite].norm().clamp_min(1e-9)
        assert error < tolerance
        assert torch.equal(one.isfinite(), is_finite)


def blocks_of(mask, length, keys=None, size=128):
    if mask is None:
        return None
    return create_block_mask(mask, None, None, length, keys or length, "cuda", BLOCK_SIZE=size)


def compare(score, mask, dtype, depth, **sizes):
    torch.manual_seed(0)
    inputs = operands(dtype, depth, **sizes)
    blocks = blocks_of(mask, inputs[0].shape[2], inputs[1].shape[2])

    @torchstrata.compile(fullgraph=True)
    def function(query, key, value):
        out, aux = flex_attention(
            query, key, value, score, blocks, enable_gqa=True, return_aux=AuxRequest(lse=True)
        )
        return out, aux.lse

    with warnings.catch_warnings():
        warnings.simplefilter("error", torchstrata.FallbackWarning)
        found = function(*inputs)
        tangents = torch.randn_like(found[0]), torch.randn_like(found[1])
        finite = torch.where(found[1].isfinite(), tangents[1], 0.0)
        grads = torch.autograd.grad(found, inputs, (tangents[0], finite))
    wanted = expected(*inputs, score, mask)
    others = torch.autograd.grad(wanted, inputs, (tangents[0].double(), finite.double()))
    tolerance = TOLERANCES[dtype]
    check(found, wanted, tolerance)
    rows = [x.nan_to_num() for x in others]  # of queries that see nothing
    check(grads, rows, 2 * tolerance)


@pytest.mark.parametrize("depth", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_sizes_of_rows(dtype, depth):
    compare(None, causal, dtype, depth)


@pytest.mark.parametrize("score", [None, capped, alibi])
@pytest.mark.parametrize("mask", [None, causal, window])
def test_functions(score, mask):
    compare(score, mask, torch.bfloat16, 64)


@pytest.mark.parametrize(("length", "keys"), [(300, 500), (1, 256), (129, 7), (256, 256)])
def test_lengths_that_tiles_do_not_divide(length, keys):
    compare(capped, None, torch.bfloat16, 64, length=length, keys=keys)


def test_rows_that_are_no_vectors():
    compare(capped, causal, torch.bfloat16, 40, kv_heads=4)
    compare(None, window, torch.float16, 24)


def test_lengths_may_change_without_compiling_again():
    before = torchstrata.counters["graphs"]
    table = torch.randn(4, 2000, device="cuda")

    @torchstrata.compile(dynamic=True, fullgraph=True)
    def function(query, key, value, blocks):
        biased = lambda s, b, h, q, k: s + table[h, q - k]  # noqa: E731
        return flex_attention(query, key, value, biased, blocks, enable_gqa=True)

    for length in (256, 384, 500, 640):
        inputs = operands(torch.bfloat16, 64, length=length)
        found = function(*inputs, blocks_of(causal, length))
        wanted, _ = expected(*inputs, lambda s, b, h, q, k: s + table[h, q - k], causal)
        check([found], [wanted], 1e-2)
    assert torchstrata.counters["graphs"] - before <= 2


def test_operands_that_overlap_or_are_misaligned():
    base = torch.randn(2 * 4 * 256 * 64 + 1, device="cuda").bfloat16()
    odd = base[1:].view(2, 4, 256, 64)
    same = torch.randn(1, 1, 256, 64, device="cuda").bfloat16().expand(2, 4, 256, 64)
    turned = torch.randn(2, 4, 64, 256, device="cuda").bfloat16().transpose(2, 3)
    function = torchstrata.compile(lambda *x: flex_attention(*x, capped), fullgraph=True)
    for inputs in ((odd, same, turned), (turned, odd, same), (same, same, same)):
        wanted, _ = expected(*inputs, capped, None)
        check([function(*inputs)], [wanted], 1e-2)


@pytest.mark.parametrize("sizes", [(0, 128, 128), (2, 0, 128), (2, 128, 0)])
def test_empty_operands(sizes):
    batch, length, keys = sizes
    query = torch.randn(batch, 2, length, 64, device="cuda").half()
    key = torch.randn(batch, 2, keys, 64, device="cuda").half()
    found = torchstrata.compile(lambda *x: flex_attention(*x, capped))(query, key, key)
    assert found.shape == query.shape
    assert (found == 0).all()


def test_operands_of_more_than_two_to_the_31_elements():
    length, heads, size = 1 << 18, 65, 128
    query, key, value = (
        torch.randn(1, heads, length, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )
    count = length // size
    indices = torch.arange(count, device="cuda", dtype=torch.int32).view(1, 1, count, 1)
    blocks = BlockMask.from_kv_blocks(
        torch.ones(1, 1, count, device="cuda", dtype=torch.int32),
        indices.expand(1, 1, count, count).contiguous(),
        BLOCK_SIZE=size,
        mask_mod=lambda b, h, q, k: q // size == k // size,
        seq_lengths=(length, length),
    )
    function = torchstrata.compile(lambda *x: flex_attention(*x, block_mask=blocks), fullgraph=True)
    found = function(query, key, value)
    for head in (0, heads - 1):
        parts = [x[0, head].view(count, 1, size, 128)[-3:] for x in (query, key, value)]
        wanted, _ = expected(*parts, None, None)
        check([found[0, head].view(count, 1, size, 128)[-3:]], [wanted], 1e-2)
