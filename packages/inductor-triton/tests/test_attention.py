"""Attention kernels: what functions become, tiles, operands that kernels can't access as they
are."""

from dataclasses import replace

import pytest
import torch
from inductor_triton.attention.backward import generate_keys, generate_queries
from inductor_triton.attention.configurations import (
    FORWARD,
    KEYS,
    QUERIES,
    configuration,
    smaller,
)
from inductor_triton.attention.forward import generate_forward
from inductor_triton.attention.operator import attend, attend_backward
from inductor_triton.attention.problem import Problem, refusal
from inductor_triton.attention.running import Kernels, Result, build_in_interpreter, laid_out
from inductor_triton.launching.compile import compile_ptx, compile_variant, example_variant

E = "[1, 1, 1, 1]"
PLACES = ", ".join(f"{name}: i32{E}" for name in "bhqk")
CAUSAL = f"def mask({PLACES}):\n    ge: bool{E} = ops.aten.ge.Tensor(q, k)\n    return (ge,)\n"
CAPPED = f"""\
def score(score: f32{E}, {PLACES}):
    div: f32{E} = ops.aten.div.Tensor(score, 2)
    tanh: f32{E} = ops.aten.tanh.default(div)
    sub: i32{E} = ops.aten.sub.Tensor(q, k)
    mul: f32{E} = ops.aten.mul.Tensor(sub, 0.25)
    add: f32{E} = ops.aten.add.Tensor(tanh, mul)
    return (add,)

def score_gradient(grad: f32{E}, score: f32{E}, {PLACES}):
    div: f32{E} = ops.aten.div.Tensor(score, 2)
    tanh: f32{E} = ops.aten.tanh.default(div)
    back: f32{E} = ops.aten.tanh_backward.default(grad, tanh)
    div_1: f32{E} = ops.aten.div.Tensor(back, 2)
    return (div_1,)
"""
GENERATE = {
    FORWARD: generate_forward,
    KEYS: generate_keys,
    QUERIES: lambda problem, config: generate_queries(problem, True, config),
}


def problem(functions="", depth=64, **changes):
    made = Problem(
        functions, torch.bfloat16, depth, depth, 0.125, (128, 128), True, (), True, True, False,
        engine=True, is_short=True,
    )  # fmt: skip
    return replace(made, **changes)


@pytest.fixture(scope="module")
def kernels():
    pytest.importorskip("triton")
    return Kernels(build_in_interpreter)


def dense(query, key, value, capped, causal, scale):
    """Attention in float64."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * scale
    q, k = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
    if capped:
        scores = torch.tanh(scores / 2) + (q - k) * 0.25
    if causal:
        scores = scores.masked_fill(q < k, -torch.inf)
    return torch._safe_softmax(scores, -1) @ value, scores.logsumexp(-1)


@pytest.mark.parametrize("text", ["", CAUSAL, CAPPED, CAPPED + CAUSAL])
@pytest.mark.parametrize("depths", [(16, 16), (24, 40)])
def test_kernels_agree_with_all_scores(kernels, text, depths):
    torch.manual_seed(0)
    depth, width = depths
    shapes = ((2, 4, 40, depth), (2, 2, 56, depth), (2, 2, 56, width))
    query, key, value = (torch.randn(shape, requires_grad=True) for shape in shapes)
    others = ([], [], 0, 0, text, 0.3)
    out, sums = attend(*(x.detach() for x in (query, key, value)), *others, kernels=kernels)
    double = [x.double() for x in (query, key, value)]
    expected = dense(*double, "def score" in text, "def mask" in text, 0.3)
    torch.testing.assert_close(out.double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums.double(), expected[1], rtol=1e-5, atol=1e-5)
    tangents = [torch.randn_like(out), torch.randn_like(sums)]
    operands = [x.detach() for x in (query, key, value)]
    found = attend_backward(*tangents, *operands, out, sums, *others, kernels=kernels)
    wanted = torch.autograd.grad(
        expected, [query, key, value], [tangent.double() for tangent in tangents]
    )
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", GENERATE)
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("depth", [64, 128])
def test_kernels_compile(kernel, capability, depth):
    pytest.importorskip("triton")
    found = problem(CAPPED + CAUSAL, depth, engine=capability >= 90)
    text = compile_ptx(GENERATE[kernel](found, configuration(kernel, found)), capability)
    assert f".target sm_{capability}" in text
    assert ("wgmma" in text) is (capability == 90)


def test_positions_become_floats_once_per_row_and_column():
    text = generate_forward(problem(CAPPED), configuration(FORWARD, problem())).text
    before, _, loop = text.partition("for step in")
    assert "m | 1258291200" in before  # the bits of 2**23
    assert "n | 1258291200" in loop
    assert "tanh16(" in loop


def test_functions_are_exact_where_operands_have_32_bits_or_positions_are_large():
    found = problem(CAPPED, dtype=torch.float32, is_short=False)
    text = generate_forward(found, configuration(FORWARD, found)).text
    assert "tanh32(" in text
    assert "1258291200" not in text


BIAS = f"""\
s0 = Size(lower=2, hint=4)

def score(score: f32{E}, {PLACES}, captured0: KIND[s0]):
    sub: i32{E} = ops.aten.sub.Tensor(q, k)
    index: KIND{E} = ops.aten.index.Tensor(captured0, [sub])
    add: f32{E} = ops.aten.add.Tensor(score, index)
    return (add,)
"""


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("length", [12, 40])
def test_lookups_wrap_and_check_their_index(kernels, kind, length):
    torch.manual_seed(0)
    names = {torch.float32: "f32", torch.float16: "f16", torch.int64: "i64"}
    query, key, value = (torch.randn(1, 2, length, 16) for _ in range(3))
    table = torch.randn(20).mul(4).to(kind)
    text = BIAS.replace("KIND", names[kind])
    arguments = (query, key, value, [table], [], 0, 0, text, 0.25)
    if length > 20:
        with pytest.raises(IndexError):
            attend(*arguments, kernels=kernels)
        return
    out, _ = attend(*arguments, kernels=kernels)
    place = torch.arange(length)
    scores = query @ key.transpose(-2, -1) * 0.25 + table[place[:, None] - place]
    torch.testing.assert_close(out, scores.softmax(-1) @ value)


def test_lookups_take_small_tiles():
    found = problem(BIAS.replace("KIND", "f32"), captured=((torch.float32, (None,)),))
    config = configuration(FORWARD, found)
    assert (config.y, config.x) == (64, 64)
    assert "load_element32(" in generate_forward(found, config).text


def test_sizes_beyond_32_bits_are_a_variant():
    pytest.importorskip("triton")
    found = problem(CAPPED + CAUSAL, 128)
    source = generate_forward(found, configuration(FORWARD, found))
    usual = example_variant(source)
    binary = compile_variant(source, replace(usual, wide=True), 90)
    assert ".param .u64 attention_param_10" in binary.ptx


def test_full_blocks_need_no_mask():
    text = generate_forward(problem(CAUSAL), configuration(FORWARD, problem())).text
    partial, full = text.split("for step in")[1:]
    assert "n <= m" in partial
    assert "n <= m" not in full


def test_tiles_divide_the_blocks_of_a_mask():
    config = configuration(FORWARD, problem(blocks=(48, 80)))
    assert (config.y, config.x) == (16, 16)
    while config is not None:
        last, config = config, smaller(config)
    assert (last.x, last.y, last.num_stages) == (16, 16, 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": torch.float64}, "no kernel for torch.float64"),
        ({"depth": 512}, "rows of more than 256"),
        ({"blocks": (100, 128)}, "no multiples of 16"),
        ({}, ""),
    ],
)
def test_what_kernels_do_not_take_has_a_reason(changes, reason):
    assert reason in refusal(problem(**changes))
    assert bool(refusal(problem(**changes))) is bool(reason)


def test_operands_are_copied_only_where_kernels_cannot_access_them():
    whole = torch.randn(2, 3, 8, 32)
    assert laid_out(whole) is whole
    assert laid_out(whole[..., :16].transpose(1, 2)).data_ptr() == whole.data_ptr()
    for odd in (whole[..., 1:17], whole[..., :20], whole.transpose(2, 3)):
        copy = laid_out(odd)
        assert copy.is_contiguous()
        assert copy.shape[-1] % 16 == 0
        torch.testing.assert_close(copy[..., : odd.shape[-1]], odd)
    target = torch.zeros(2, 3, 32, 8).transpose(2, 3)[..., :20]
    result = Result(target)
    result.memory.fill_(1)
    assert result.finish() is target
    assert (target == 1).all()
