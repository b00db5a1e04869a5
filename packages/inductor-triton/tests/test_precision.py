"""What is rounded to 16 bits on every way to memory is computed to that precision; gelu is one
function there.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from inductor_triton import TritonCodeGenerator
from inductor_triton.kernels.facts import narrow_values
from inductor_triton.kernels.passes.gelu import fuse_gelu
from loopir import parse_kernel

GELU = """
@kernel(device='cuda')
def gelu(x: In('float32', {n}), out: Out('float16', {n})):
    for i in range({n}):
        a = load(x, [i], 'float32')
        h = constant(0.5, 'float32')
        r = constant(0.7071067811865476, 'float32')
        one = constant(1.0, 'float32')
        b = mul(a, r)
        c = erf(b)
        d = add(one, c)
        e = mul(h, a)
        f = mul(e, d)
        g = cast(f, 'float16')
        store(out, [i], g)
"""


def values_of(text: str) -> frozenset[str]:
    kernel = parse_kernel(text)
    steps = [step for body in kernel.bodies for step in body.instructions]
    return narrow_values(steps, {buffer.name: buffer.dtype for buffer in kernel.buffers})


def computed(values: torch.Tensor) -> torch.Tensor:
    """gelu of ``values`` as a kernel computes it, not rounded."""
    pytest.importorskip("triton")
    from inductor_triton.launching.interpret import interpreted

    source = TritonCodeGenerator().generate(parse_kernel(GELU.format(n=len(values))))
    assert "f = gelu16(a)" in source.text
    assert "erf" not in source.text.split("@triton.jit")[-1]
    out = torch.zeros_like(values)
    interpreted(replace(source, text=source.text.replace("g = f.to(tl.float16)", "g = f")))(
        values, out
    )
    return out


def test_error_of_gelu():
    values = torch.linspace(-8, 8, 20001)
    exact = values.double() * 0.5 * torch.special.erfc(-values.double() / math.sqrt(2))
    error = (computed(values).double() - exact).abs()
    assert float(error.max()) < 2e-5
    assert float((error / exact.abs())[(values > -4) & (values != 0)].max()) < 1.2e-4


def test_special_values_of_gelu():
    values = torch.tensor(
        [0.0, 1e-30, 60000.0, -60000.0, 3e38, -3e38, math.inf, -math.inf, math.nan, 17.0, -17.0]
    )
    expected = 0.5 * values * (1 + torch.erf(values / math.sqrt(2)))
    torch.testing.assert_close(computed(values), expected, equal_nan=True, rtol=1e-4, atol=1e-30)


def test_a_factor_of_gelu_takes_no_product_of_its_own():
    values = torch.cat(
        [torch.linspace(-8, 8, 999), torch.tensor([3e38, -3e38, math.inf, math.nan])]
    )
    text = GELU.format(n=len(values)).replace(
        "g = cast(f", "s = constant(1.25, 'float32')\n        t = mul(f, s)\n        g = cast(t"
    )
    source = TritonCodeGenerator().generate(parse_kernel(text))
    assert "t = gelu16(a, 0.625, " in source.text
    out = torch.zeros_like(values)
    pytest.importorskip("triton")
    from inductor_triton.launching.interpret import interpreted

    interpreted(replace(source, text=source.text.replace("g = t.to(tl.float16)", "g = t")))(
        values, out
    )
    torch.testing.assert_close(out, 1.25 * computed(values), equal_nan=True, rtol=1e-5, atol=1e-6)


def test_narrow_values():
    assert values_of(GELU.format(n=8)) >= {"a", "b", "c", "d", "e", "f"}
    both = GELU.format(n=8).replace(
        "out: Out('float16', 8)", "out: Out('float16', 8), wide: Out('float32', 8)"
    )
    both = both.replace("store(out, [i], g)", "store(out, [i], g)\n        store(wide, [i], c)")
    assert values_of(both) & {"a", "b", "c", "d", "e", "f"} == {"d", "e", "f"}
    wide = parse_kernel(both.replace("[i], c)", "[i], f)"))
    dtypes = {buffer.name: buffer.dtype for buffer in wide.buffers}
    assert fuse_gelu(wide.bodies, dtypes) == wide.bodies


def test_what_rounds_first_may_be_kept_wide_later():
    """A gradient is rounded to bfloat16 where it is stored, and summed as such."""
    text = """
@kernel(device='cuda')
def gradient(x: In('float32', 64), out: Out('bfloat16', 64), total: Out('float32', 8)):
    for i in range(8):
        for r in reduce(8):
            a = load(x, [8*i + r], 'float32')
            b = exp(a)
            c = cast(b, 'bfloat16')
            store(out, [8*i + r], c)
            d = cast(c, 'float32')
            s = reduce('sum', d, 'float32')
        store(total, [i], s)
"""
    assert values_of(text) & {"b", "d", "s"} == {"b"}
    assert "exp16" in TritonCodeGenerator().generate(parse_kernel(text)).text


def test_a_gelu_that_is_summed_in_float32_stays_exact():
    """What reads it rounds nothing, though no store of the same body does either."""
    text = GELU.format(n=8).replace("Out('float16', 8)", "Out('float32', 1)")
    text = text.replace("for i in range(8)", "for i in reduce(8)").replace(
        "        g = cast(f, 'float16')\n        store(out, [i], g)",
        "        s = reduce('sum', f, 'float32')\n    store(out, [0], s)",
    )
    kernel = parse_kernel(text)
    dtypes = {buffer.name: buffer.dtype for buffer in kernel.buffers}
    assert fuse_gelu(kernel.bodies, dtypes) == kernel.bodies
    dtypes["out"] = torch.float16
    assert fuse_gelu(kernel.bodies, dtypes) != kernel.bodies
