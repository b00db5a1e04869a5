"""Casts of float8 by instructions where the device has them, and other costs of kernels that are
bound by arithmetic.
"""

from __future__ import annotations

import pytest
import torch
from inductor_triton import generate_source
from inductor_triton.kernels.library import for_capability
from inductor_triton.launching.compile import compile_ptx
from loopir import parse_kernel

CAST = """
@kernel(device='cuda')
def cast8(x: In('bfloat16', 4096), out: Out('{0}', 4096)):
    for i in range(4096):
        a = load(x, [i], 'bfloat16')
        b = cast(a, 'float32')
        c = cast(b, '{0}')
        store(out, [i], c)
"""
LOSS = """
@kernel(device='cuda', vector='r')
def loss(x: In('bfloat16', 65536), top: Out('float32', 16), total: Out('float32', 16), out: Out('{0}', 65536)):
    for i in range(16):
        for r in reduce(4096):
            a = load(x, [4096*i + r], 'bfloat16')
            b = cast(a, 'float32')
            m = reduce('max', b, 'float32')
        store(top, [i], m)
        for r in reduce(4096):
            c = load(x, [4096*i + r], 'bfloat16')
            d = cast(c, 'float32')
            e = sub(d, m)
            f = exp(e)
            s = reduce('sum', f, 'float32')
        store(total, [i], s)
        g = log(s)
        for r in reduce(4096):
            h = load(x, [4096*i + r], 'bfloat16')
            k = cast(h, 'float32')
            n = sub(k, m)
            o = sub(n, g)
            p = exp(o)
            {1}
            store(out, [4096*i + r], q)
"""


@pytest.mark.parametrize(
    ("dtype", "instruction"), [("float8_e4m3fn", "e4m3x2.f32"), ("float8_e5m2", "e5m2x2.f32")]
)
def test_casts_are_instructions_of_later_devices(dtype: str, instruction: str):
    source = generate_source(parse_kernel(CAST.format(dtype)))
    assert f"cvt.rn.satfinite.{instruction}" in compile_ptx(source, 90)
    assert "cvt.rn.satfinite" not in compile_ptx(source, 80)
    assert f"cvt.rn.satfinite.{instruction}" in compile_ptx(source, 90)
    assert "cvt.rn.satfinite" not in compile_ptx(source, 86)


def test_only_later_devices_get_other_functions():
    text = generate_source(parse_kernel(CAST.format("float8_e4m3fn"))).text
    assert for_capability(text, 86) == text
    assert "tl.float8e4nv" in for_capability(text, 89)


def test_a_logarithm_has_no_float64():
    text = """
@kernel(device='cuda')
def logarithm(x: In('float32', 4096), out: Out('float32', 4096)):
    for i in range(4096):
        a = load(x, [i], 'float32')
        b = log(a)
        store(out, [i], b)
"""
    assert "f64" not in compile_ptx(generate_source(parse_kernel(text)))


def test_long_arithmetic_has_few_elements_per_thread():
    steps = "\n        ".join(
        f"v{n + 1} = sqrt(v{n})\n        w{n + 1} = add(w{n}, v{n + 1})" for n in range(150)
    )
    text = f"""
@kernel(device='cuda')
def chain(x: In('float32', 1048576), out: Out('float32', 1048576)):
    for i in range(1048576):
        v0 = load(x, [i], 'float32')
        w0 = constant(1.0, 'float32')
        {steps}
        store(out, [i], w150)
"""
    assert "XBLOCK: tl.constexpr = 256\n" in generate_source(parse_kernel(text)).text


def test_exponentials_of_a_sum_serve_a_narrow_gradient():
    narrow = LOSS.format("bfloat16", "q = cast(p, 'bfloat16')")
    source = generate_source(parse_kernel(narrow)).text
    assert source.count("exp_difference(") == 2  # its definition, and one call
    wide = LOSS.format("float32", "q = neg(p)")
    assert "exp_difference(" not in generate_source(parse_kernel(wide)).text


@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
def test_values_of_a_loss(run, scale: float):
    torch.manual_seed(0)
    x = (torch.randn(65536) * scale).bfloat16()
    outs = torch.zeros(16), torch.zeros(16), torch.zeros(65536, dtype=torch.bfloat16)
    run(LOSS.format("bfloat16", "q = cast(p, 'bfloat16')"), x, *outs, ptx=(90,))
