"""The source of typical kernels, as reviewed, and that each compiles for the supported
architectures.
"""

from __future__ import annotations

import re

import pytest
from inductor_triton import compile_ptx, generate_source
from loopir import parse_kernel

POINTWISE = """
# gelu: y = gelu(x + bias)
@kernel(device='cuda')
def add_gelu(in0: In('bfloat16', 4194304), in1: In('bfloat16', 1024), out: Out('bfloat16', 4194304)):
    for i in range(4096):
        for j in range(1024):
            a = load(in0, [1024*i + j], 'bfloat16')
            b = load(in1, [j], 'bfloat16')
            a32 = cast(a, 'float32')
            b32 = cast(b, 'float32')
            x = add(a32, b32)
            half = constant(0.5, 'float32')
            root = constant(0.7071067811865476, 'float32')
            one = constant(1.0, 'float32')
            h = mul(x, half)
            s = mul(x, root)
            e = erf(s)
            p = add(e, one)
            y = mul(h, p)
            z = cast(y, 'bfloat16')
            store(out, [1024*i + j], z)
"""
SOFTMAX = """
@kernel(device='cuda')
def softmax(in0: In('float32', {total}), out: Out('float32', {total})):
    for i in range(2048):
        for r in reduce({columns}):
            a = load(in0, [{columns}*i + r], 'float32')
            m = reduce('max', a, 'float32')
        for r in reduce({columns}):
            b = load(in0, [{columns}*i + r], 'float32')
            d = sub(b, m)
            e = exp(d)
            s = reduce('sum', e, 'float32')
        for r in reduce({columns}):
            c = load(in0, [{columns}*i + r], 'float32')
            d2 = sub(c, m)
            e2 = exp(d2)
            q = div(e2, s)
            store(out, [{columns}*i + r], q)
"""
LAYERNORM = """
@kernel(device='cuda')
def layernorm(x: In('bfloat16', 768*s0), w: In('float32', 768), b: In('float32', 768), out: Out('bfloat16', 768*s0),
              mean: Out('float32', s0), rstd: Out('float32', s0), s0: Size(hint=4096)):
    for i in range(s0):
        for r in reduce(768):
            a = load(x, [768*i + r], 'bfloat16')
            v = cast(a, 'float32')
            s = reduce('sum', v, 'float32')
        n = constant(768.0, 'float32')
        mu = div(s, n)
        store(mean, [i], mu)
        for r in reduce(768):
            a2 = load(x, [768*i + r], 'bfloat16')
            v2 = cast(a2, 'float32')
            d = sub(v2, mu)
            q = mul(d, d)
            t = reduce('sum', q, 'float32')
        var = div(t, n)
        eps = constant(1e-05, 'float32')
        shifted = add(var, eps)
        rs = rsqrt(shifted)
        store(rstd, [i], rs)
        for r in reduce(768):
            a3 = load(x, [768*i + r], 'bfloat16')
            v3 = cast(a3, 'float32')
            d3 = sub(v3, mu)
            h = mul(d3, rs)
            g = load(w, [r], 'float32')
            k = load(b, [r], 'float32')
            y = mul(h, g)
            z = add(y, k)
            o = cast(z, 'bfloat16')
            store(out, [768*i + r], o)
"""
TRANSPOSE_ADD = """
@kernel(device='cuda', vector='j', tile='i')
def transpose_add(in0: In('float32', 67108864), in1: In('float32', 67108864), out: Out('float32', 67108864)):
    for i in range(8192):
        for j in range(8192):
            a = load(in0, [8192*i + j], 'float32')
            b = load(in1, [8192*j + i], 'float32')
            c = add(a, b)
            store(out, [8192*i + j], c)
"""
SHORT_TRANSPOSE = """
@kernel(device='cuda', vector='j', tile='k')
def short_transpose(x: In('bfloat16', 2359296), out: Out('bfloat16', 2359296)):
    for i in range(512):
        for k in range(9):
            for j in range(512):
                a = load(x, [4608*i + 512*k + j], 'bfloat16')
                store(out, [4608*i + k + 9*j], a)
"""
EMBEDDING_GRADIENT = """
@kernel(device='cuda')
def embedding_gradient(grad: In('float32', 64*s0), idx: In('int64', s0), out: InOut('float32', 6400), s0: Size(hint=512)):
    for i in range(s0):
        for j in range(64):
            k = load(idx, [i], 'int64')
            row = indirect(k, 100)
            g = load(grad, [64*i + j], 'float32')
            store(out, [64*row + j], g, mode='add')
"""
DROPOUT = """
@kernel(device='cuda')
def dropout(x: In('bfloat16', 16777216), seed: In('int64', 1), out: Out('bfloat16', 16777216)):
    for i in range(16777216):
        s = load(seed, [0], 'int64')
        c = index_expr(i, 'int64')
        u = uniform(s, c)
        p = constant(0.1, 'float32')
        keep = lt(p, u)
        a = load(x, [i], 'bfloat16')
        v = cast(a, 'float32')
        scale = constant(1.1111111, 'float32')
        y = mul(v, scale)
        zero = constant(0.0, 'float32')
        z = where(keep, y, zero)
        o = cast(z, 'bfloat16')
        store(out, [i], o)
"""
COLUMN_SUM = """
@kernel(device='cuda')
def column_sum(in0: In('float32', 4096000), out: Out('float32', 1000)):
    for j in range(1000):
        for r in reduce(4096):
            a = load(in0, [1000*r + j], 'float32')
            s = reduce('sum', a, 'float32')
        store(out, [j], s)
"""
KERNELS = {
    "pointwise": POINTWISE, "softmax": SOFTMAX.format(total=2048 * 1000, columns=1000),
    "softmax_long": SOFTMAX.format(total=2048 * 50304, columns=50304), "layernorm": LAYERNORM,
    "transpose_add": TRANSPOSE_ADD,
    "short_transpose": SHORT_TRANSPOSE, "embedding_gradient": EMBEDDING_GRADIENT,
    "dropout": DROPOUT, "column_sum": COLUMN_SUM,
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_source(golden, name):
    golden(generate_source(parse_kernel(KERNELS[name])).text)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", KERNELS)
def test_compiles(name, capability):
    pytest.importorskip("triton")
    ptx = compile_ptx(generate_source(parse_kernel(KERNELS[name])), capability)
    assert f".target sm_{capability}" in ptx
    if name in ("pointwise", "softmax", "layernorm", "dropout"):
        assert "ld.global.v" in ptx or ".v4.b32" in ptx, "aligned contiguous loads are vectors"


def test_generation_is_deterministic():
    texts = {generate_source(parse_kernel(LAYERNORM)).text for _ in range(3)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("points", "capability", "waits", "lets_begin"),
    [(64, 90, 1, 1), (64, 80, 0, 0), (1 << 20, 90, 1, 0), (1 << 26, 90, 0, 0)],
)
def test_small_launches_begin_early(points, capability, waits, lets_begin):
    """A launch waits for those ahead; one of few programs then lets the next begin."""
    text = f"""
@kernel(device='cuda')
def double(in0: In('float32', {points}), out: Out('float32', {points})):
    for i in range({points}):
        a = load(in0, [i], 'float32')
        b = add(a, a)
        store(out, [i], b)
"""
    ptx = compile_ptx(generate_source(parse_kernel(text)), capability)
    controls = re.findall(r"griddepcontrol\.(\w+)|(ld)\.global", ptx)
    expected = ["wait"] * waits + ["launch_dependents"] * lets_begin
    assert [control for control, load in controls if control] == expected
    assert all(load for _, load in controls[len(expected) :])
