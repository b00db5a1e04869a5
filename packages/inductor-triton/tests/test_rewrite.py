"""Sums of one-hot rows, and kernels without a reduction left, against the evaluator."""

from __future__ import annotations

import pytest
import torch
from inductor_triton import TritonCodeGenerator
from inductor_triton.kernels.passes.trivial_reductions import simplified
from loopir import ArtifactStore, check_kernel, evaluate_kernel, parse_kernel

LOSS = """
@kernel(device='cuda')
def loss(target: In('int64', 5), y: In('float32', 200), out: Out('float32', 200)):
    for i in range(5):
        t = load(target, [i], 'int64')
        v = index_expr(3*i + 1, 'float32')
        z = constant(0.0, 'float32')
        for r in reduce(40):
            k = index_expr(r, 'int64')
            same = eq(k, t)
            w = where(same, v, z)
            s = reduce('sum', w, 'float32')
        for r in reduce(40):
            k2 = index_expr(r, 'int64')
            same2 = eq(k2, t)
            w2 = where(same2, v, z)
            a = load(y, [40*i + r], 'float32')
            e = exp(a)
            p = mul(e, s)
            d = sub(w2, p)
            store(out, [40*i + r], d)
"""


def check(text, tmp_path):
    pytest.importorskip("triton")
    kernel = parse_kernel(text)
    check_kernel(kernel)
    check_kernel(simplified(kernel))
    torch.manual_seed(0)
    tensors = [torch.tensor([3, -100, 39, 40, 0]), torch.randn(200), torch.zeros(200)]
    expected = [tensor.clone() for tensor in tensors]
    evaluate_kernel(kernel, expected, ())
    generator = TritonCodeGenerator(device="cpu", interpret=True)
    (launch,) = generator.build([generator.generate(kernel)], ArtifactStore(tmp_path))
    launch(*tensors)
    torch.testing.assert_close(tensors[2], expected[2])
    return simplified(kernel)


def test_the_gradient_of_a_loss_is_pointwise(tmp_path):
    kernel = check(LOSS, tmp_path)
    assert not kernel.reduction
    assert "reduce(" not in TritonCodeGenerator().generate(kernel).text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("same = eq(k, t)", "same = lt(k, t)"),
        (
            "w = where(same, v, z)",
            "f = index_expr(r, 'float32')\n            w = where(same, f, z)",
        ),
        ("w = where(same, v, z)", "w = where(same, v, v)"),
        ("k = index_expr(r, 'int64')", "k = index_expr(r + 1, 'int64')"),
        ("'sum', w", "'max', w"),
    ],
)
def test_other_sums_stay(tmp_path, old, new):
    assert check(LOSS.replace(old, new, 1), tmp_path).reduction


def test_the_target_may_stand_first(tmp_path):
    assert not check(LOSS.replace("eq(k, t)", "eq(t, k)"), tmp_path).reduction


def test_place_is_compared_in_32_bits(run):
    """A target beyond 32 bits is no place, though its low half is one."""
    text = """
@kernel(device='cuda', vector='r')
def picked(target: In('int64', 6), x: In('float32', 120), out: Out('bfloat16', 120)):
    for i in range(6):
        t = load(target, [i], 'int64')
        s = load(x, [20*i], 'float32')
        for r in reduce(20):
            p = index_expr(r, 'int64')
            e = eq(p, t)
            a = load(x, [20*i + r], 'float32')
            m = reduce('max', a, 'float32')
        for r in reduce(20):
            p2 = index_expr(r, 'int64')
            e2 = eq(p2, t)
            z = constant(0.0, 'float32')
            w = where(e2, s, z)
            h = cast(w, 'bfloat16')
            b = cast(h, 'float32')
            c = load(x, [20*i + r], 'float32')
            d = sub(b, m)
            f = add(c, d)
            g = cast(f, 'bfloat16')
            store(out, [20*i + r], g)
"""
    target = torch.tensor([3, 19, -1, 2**32 + 3, 2**31, -(2**63)])
    source = run(
        text, target, torch.randn(120), torch.zeros(120, dtype=torch.bfloat16), ulps=1, ptx=(90,)
    )
    assert "t_place" in source
