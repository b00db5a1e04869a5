"""Attention of few queries by parts of the keys: values, masks, what becomes of calls in graphs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from inductor_triton import TritonCodeGenerator, compile_ptx
from inductor_triton.attention import offered
from inductor_triton.attention import operator as attention_operator
from inductor_triton.attention.few_queries import (
    CAUSAL,
    FEWEST_KEYS,
    PROGRAMS,
    SHARE,
    FewQueries,
    divided,
    generate_combined,
    generate_parts,
    has_few_queries,
    parts_configuration,
)
from inductor_triton.attention.problem import Problem
from inductor_triton.attention.running import Kernels, build_in_interpreter, prepare
from inductor_triton.spec import Config
from loopir import Attention, Options, compile_graph
from loopir.ir.program import ExternCall
from primops import TensorMeta
from primops.testing import trace

E = "[1, 1, 1, 1]"
PLACES = ", ".join(f"{name}: i32{E}" for name in "bhqk")
SLOPES = f"""\
s0 = Size(lower=2, hint=4)

def score(score: f32{E}, {PLACES}, captured0: f32[s0]):
    slope: f32{E} = ops.aten.index.Tensor(captured0, [h])
    sub: i32{E} = ops.aten.sub.Tensor(q, k)
    mul: f32{E} = ops.aten.mul.Tensor(sub, slope)
    half: f32{E} = ops.aten.mul.Tensor(score, 0.5)
    add: f32{E} = ops.aten.add.Tensor(half, mul)
    return (add,)

def score_gradient(grad: f32{E}, score: f32{E}, {PLACES}, captured0: f32[s0]):
    half: f32{E} = ops.aten.mul.Tensor(grad, 0.5)
    return (half,)

"""
WINDOW = f"""\
def mask({PLACES}):
    add: i32{E} = ops.aten.add.Tensor(q, 100)
    ge: bool{E} = ops.aten.ge.Tensor(k, add)
    return (ge,)
"""


@pytest.fixture(scope="module")
def kernels():
    pytest.importorskip("triton")
    return Kernels(build_in_interpreter)


def operands(groups, queries, length, depth, batch=1, kv_heads=2, dtype=torch.float32):
    """Query, and keys and values whose heads lie beside each other."""
    torch.manual_seed(groups + queries + length)
    query = torch.randn(batch, queries, kv_heads * groups, depth).transpose(1, 2)
    key, value = torch.randn(2, batch, length, kv_heads, depth).transpose(2, 3)
    return [x.to(dtype) for x in (query, key, value)]


def scores_of(query, key, mask=None, causal=False, scale=0.2):
    """The scores in float64, and the values for each query head."""
    groups = query.shape[1] // key.shape[1]
    scores = query.double() @ key.double().repeat_interleave(groups, 1).transpose(-2, -1) * scale
    if mask is not None and mask.dtype is torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    if causal:
        q, k = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
        scores = scores.masked_fill(q < k, -math.inf)
    return scores


def attended(scores, value):
    groups = scores.shape[1] // value.shape[1]
    return torch._safe_softmax(scores, -1) @ value.double().repeat_interleave(groups, 1)


def check(kernels, tensors, mask=None, causal=False, scale=0.2):
    query, key, value = tensors
    out = offered.attend(query, key, value, mask, causal, scale, kernels=kernels)
    wanted = attended(scores_of(query, key, mask, causal, scale), value)
    limit = 1e-5 if query.dtype is torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), wanted, rtol=limit, atol=limit)
    assert out.stride() == offered.result_like(query, value).stride()
    return out


@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize(("queries", "depth"), [(1, 64), (2, 80), (4, 128)])
@pytest.mark.parametrize("length", [1, 63, 64, 1000, 1024])
def test_values(kernels, groups, queries, depth, length):
    check(kernels, operands(groups, queries, length, depth))


def masks(kind, shape):
    torch.manual_seed(1)
    if kind == "bool":
        return torch.rand(shape) > 0.4
    numbers = torch.randn(shape)
    return numbers.masked_fill(torch.rand(shape) > 0.6, -math.inf)


@pytest.mark.parametrize("kind", ["bool", "additive"])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 70), (2, 1, 1, 70), (1, 8, 1, 70), (2, 1, 3, 70), (3, 70), (1, 1, 3, 1)]
)
def test_masks_are_broadcast(kernels, kind, shape):
    given, tensors = masks(kind, shape), operands(4, 3, 70, 16, batch=2)
    check(kernels, tensors, given.expand(2, 8, 3, 70) if kind == "bool" else given)


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_and_causal_masks(kernels, queries, dtype):
    tensors = operands(2, queries, 130, 64, dtype=dtype)
    check(kernels, tensors)
    check(kernels, tensors, causal=True, scale=-0.1)
    check(kernels, tensors, masks("additive", (130,)).to(dtype), scale=0.0)


def test_queries_that_see_nothing_give_zero(kernels):
    tensors = operands(2, 2, 130, 16)
    seen = torch.zeros(2, 130, dtype=torch.bool)
    seen[1, 100:] = True
    for mask in (seen, torch.zeros(2, 130).masked_fill(~seen, -math.inf)):
        out = check(kernels, tensors, mask)
        assert not out[:, :, 0].any()
        torch.testing.assert_close(out, F.scaled_dot_product_attention(
            *tensors, mask, scale=0.2, enable_gqa=True), rtol=1e-5, atol=1e-5)  # fmt: skip


def test_the_lowest_number_of_a_mask_hides_no_whole_row(kernels):
    lowest = torch.finfo(torch.float32).min
    tensors = operands(2, 1, 130, 16)
    out = check(kernels, tensors, torch.full((130,), lowest))
    mean = tensors[2].mean(2, keepdim=True).repeat_interleave(2, 1)
    torch.testing.assert_close(out, mean, rtol=1e-5, atol=1e-5)


@given(
    st.integers(1, 3), st.integers(1, 5), st.integers(1, 3), st.integers(1, 150),
    st.sampled_from([8, 16, 40]), st.sampled_from([None, "bool", "additive"]), st.booleans(),
)  # fmt: skip
@settings(max_examples=30)
def test_any_sizes(kernels, kv_heads, groups, queries, length, depth, kind, by_row):
    tensors = operands(groups, queries, length, depth, 2, kv_heads)
    mask = None if kind is None else masks(kind, (queries if by_row else 1, length))
    check(kernels, tensors, mask, causal=kind is None and by_row)


@pytest.mark.parametrize("text", ["", CAUSAL, SLOPES, SLOPES + WINDOW])
def test_functions_agree_with_the_forward_kernel(kernels, text, monkeypatch):
    tensors = operands(4, 2, FEWEST_KEYS + 2, 16)
    captured = [torch.rand(8)] if "captured0" in text else []
    others = (captured, [], 0, 0, text, 0.3)
    call = prepare(*tensors, *others)
    assert has_few_queries(call)
    found = attention_operator.attend(*tensors, *others, kernels=kernels)
    parts = [key[0][0] for key in kernels._built]
    assert "parts" in parts
    with monkeypatch.context() as patch:
        patch.setattr(attention_operator, "has_few_queries", lambda call: False)
        wanted = attention_operator.attend(*tensors, *others, kernels=kernels)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    tangents = [torch.randn_like(x) for x in found]
    gradients = [
        attention_operator.attend_backward(*tangents, *tensors, *each, *others, kernels=kernels)
        for each in (found, wanted)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_indices_out_of_range_are_reported(kernels):
    tensors = operands(4, 1, FEWEST_KEYS + 72, 16)
    with pytest.raises(IndexError):
        attention_operator.attend(*tensors, [torch.rand(6)], [], 0, 0, SLOPES, 0.3, kernels=kernels)


def test_many_heads_or_few_keys_take_the_forward_kernel():
    assert has_few_queries(prepare(*operands(8, 8, FEWEST_KEYS, 16), [], [], 0, 0, "", 1.0))
    for case in (
        operands(8, 9, FEWEST_KEYS, 16),
        operands(8, 1, FEWEST_KEYS - 1, 16),
        operands(8, 1, FEWEST_KEYS, 16, batch=9),
    ):
        assert not has_few_queries(prepare(*case, [], [], 0, 0, "", 1.0))


@given(st.integers(1, 400), st.integers(1, 20000))
def test_parts_cover_the_keys(pairs, keys):
    parts, share = divided(pairs, keys)
    assert share % SHARE == 0
    assert (parts - 1) * share < keys <= parts * share
    assert pairs * parts <= max(PROGRAMS, pairs)


def test_keys_are_divided_until_each_part_has_one_tile():
    assert divided(8, 1024) == (16, 64)
    assert divided(8, 8192) == (32, 256)
    assert divided(500, 1024) == (1, 1024)


def few(dtype=torch.bfloat16, depth=64, functions="", **options):
    captured = ((torch.float32, (None,)),) if "captured0" in functions else ()
    problem = Problem(
        functions, dtype, depth, depth, 0.125, None, False, captured, False, False, True,
        is_short=True,
    )  # fmt: skip
    return FewQueries(problem, 16, **options)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    "case",
    [
        few(mask=torch.bfloat16),
        few(mask=torch.bool, by_row=True, depth=128),
        few(functions=SLOPES + WINDOW, depth=80),
        few(dtype=torch.float32, depth=256),
    ],
)
def test_kernels_compile(capability, case):
    pytest.importorskip("triton")
    config = parts_configuration(case.problem)
    for source in (generate_parts(case, config), generate_combined(case, Config(x=1))):
        assert f".target sm_{capability}" in compile_ptx(source, capability)


def described(**changes):
    sizes = {"batch": 1, "heads": 32, "kv_heads": 8, "queries": 1, "keys": 1024, "depth": 64}
    sizes |= {name: value for name, value in changes.items() if name in sizes}
    batch, heads, kv_heads, queries, keys, depth = sizes.values()
    dtype = changes.get("dtype", torch.bfloat16)

    def meta(*shape):
        return TensorMeta.from_tensor(torch.empty(shape, dtype=dtype, device="meta"))

    key = meta(batch, kv_heads, keys, depth)
    return Attention(meta(batch, heads, queries, depth), key, key, changes.get("mask"), False, 1.0)


@pytest.mark.parametrize(
    ("changes", "is_offered"),
    [
        ({}, True),
        ({"queries": 4}, True),
        ({"queries": 5}, False),
        ({"batch": 64}, True),
        ({"depth": 320}, False),
        ({"dtype": torch.float64}, False),
        ({"kv_heads": 32}, False),
    ],
)
def test_offers(changes, is_offered):
    found = TritonCodeGenerator().offer_attention(described(**changes))
    assert found is (offered.ATTENTION if is_offered else None)
    assert TritonCodeGenerator(device="cpu").offer_attention(described(**changes)) is None


class Offering(TritonCodeGenerator):
    def offer_attention(self, attention):
        return offered.offered(attention)


def step(query, key, value, cache_key, cache_value, place, mask):
    """Decodes one token: writes its key and value to the caches, and attends to all."""
    cache_key.index_copy_(2, place, key)
    cache_value.index_copy_(2, place, value)
    wide = [
        x[:, :, None].expand(-1, -1, 4, -1, -1).reshape(1, 8, -1, 16)
        for x in (cache_key, cache_value)
    ]
    return F.scaled_dot_product_attention(query, *wide, mask).transpose(1, 2).flatten(2)


def test_a_graph_calls_the_kernels_with_the_cache(kernels, monkeypatch):
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 8, 1, 16), *torch.randn(2, 1, 2, 1, 16)
    caches, place = torch.randn(2, 1, 2, 64, 16), torch.tensor([5])
    mask = (torch.arange(64) <= 5)[None, None, None]
    arguments = [query, key, value, *caches, place, mask]
    graph = trace(step, *[x.clone() for x in arguments])
    expected = step(*[x.clone() for x in arguments])
    monkeypatch.setattr(
        offered.ATTENTION, "direct",
        lambda *operands: offered.attend(*operands, kernels=kernels),
    )  # fmt: skip
    codegen = Offering(device="cpu", interpret=True)
    host = compile_graph(
        graph, arguments, codegens={"cpu": codegen}, options=Options(inference=True, check=True)
    )
    calls = [entry.node for entry in host.program.steps if isinstance(entry, ExternCall)]
    assert [call.op for call in calls] == [offered.ATTENTION]
    sizes = [host.program.buffers[calls[0].args[i].buffer].shape for i in (1, 2)]
    assert sizes == [(1, 2, 64, 16)] * 2
    torch.testing.assert_close(host(*arguments)[-1], expected, rtol=1e-4, atol=1e-5)


def test_strides_of_the_result_are_known_without_a_device():
    query = torch.empty(2, 4, 3, 16, device="meta")
    out = offered.ATTENTION(query, query, query[..., :8], None, False, 1.0)
    assert out.shape == (2, 4, 3, 8)
    assert out.stride() == (96, 8, 32, 1)
    found = offered.ATTENTION(*torch.randn(3, 2, 4, 3, 16), None, True, 1.0)
    assert found.stride() == (192, 16, 64, 1)


def test_longer_rows_take_smaller_tiles():
    problem = few().problem
    assert parts_configuration(problem).x == SHARE
    assert parts_configuration(replace(problem, dtype=torch.float32, width=256)).x < SHARE
