"""Products with a number in place: nothing is touched where the number is 1."""

from __future__ import annotations

import pytest
import torch
from inductor_triton import compile_ptx, generate_source
from inductor_triton.kernels.scaling import scaling_of
from inductor_triton.spec import Config
from loopir import parse_kernel

TEXT = """
@kernel(device='cuda')
def scaled(grad: In('float32', {n}), tangent: In('float32', 1), out: Out('float32', {n})):
    for i in range({n}):
        a = load(grad, [i], 'float32')
        b = load(tangent, [0], 'float32')
        c = mul(a, b)
        store(out, [i], c)
"""
HALF = """
@kernel(device='cuda')
def scaled(grad: In('bfloat16', {n}), tangent: In('bfloat16', 1), out: Out('bfloat16', {n})):
    for i in range({n}):
        a = load(grad, [i], 'bfloat16')
        b = load(tangent, [0], 'bfloat16')
        c = cast(a, 'float32')
        d = cast(b, 'float32')
        e = mul(c, d)
        f = cast(e, 'bfloat16')
        store(out, [i], f)
"""
BLOCKS = 2000
"""More than programs walk over."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("factor", [0.37, pytest.param(1.0, marks=pytest.mark.slow)])
def test_scaled_in_place_and_elsewhere(factor: float, dtype: str):
    pytest.importorskip("triton")
    from inductor_triton.launching.interpret import interpreted

    text = (TEXT if dtype == "float32" else HALF).format(n=BLOCKS * 16 + 5)
    source = generate_source(parse_kernel(text), Config(x=16))
    assert "unchanged" in source.text
    grad = torch.randn(BLOCKS * 16 + 5).to(getattr(torch, dtype))
    tangent, out = torch.tensor([factor]).to(grad.dtype), torch.zeros_like(grad)
    expected = grad * tangent
    interpreted(source)(grad, tangent, out)
    assert torch.equal(out, expected)
    interpreted(source)(grad, tangent, grad)
    assert torch.equal(grad, expected)
    assert ".target sm_90" in compile_ptx(source, 90)


def test_what_is_no_scaling():
    kernel = TEXT.format(n=1 << 22)
    assert scaling_of(parse_kernel(kernel)) is not None
    assert "grid" not in generate_source(parse_kernel(TEXT.format(n=4096))).text
    for old, new in (
        ("mul(a, b)", "add(a, b)"),
        ("[0]", "[i]"),
        ("store(out, [i], c)", "store(out, [i], c, mode='add')"),
    ):
        changed = kernel.replace(
            "tangent: In('float32', 1)", f"tangent: In('float32', {1 << 22})"
        ).replace(old, new)
        assert scaling_of(parse_kernel(changed)) is None, new
