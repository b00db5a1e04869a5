"""The one-pass maximum and sum of exponentials: values, infinities and NaN against two passes."""

from __future__ import annotations

import pytest
import torch
from inductor_triton import Config, compile_ptx, generate_source
from inductor_triton.kernels import tiling
from loopir import parse_kernel

LONG = Config(x=2, r=16, persistent=False)


def text(columns: int, dtype: str = "float32", extra: str = "") -> str:
    cast = (
        "a0 = load(x, [{0}*i + r], '{1}')\n            {2} = cast(a0, 'float32')"
        if dtype != "float32"
        else ""
    )

    def load(name: str) -> str:
        return (
            cast.format(columns, dtype, name)
            if cast
            else f"{name} = load(x, [{columns}*i + r], 'float32')"
        )

    return f"""
@kernel(device='cuda')
def logsumexp(x: In({dtype!r}, {5 * columns}), top: Out('float32', 5), out: Out('float32', 5)):
    for i in range(5):
        for r in reduce({columns}):
            {load("a")}
            m = reduce('max', a, 'float32')
        for r in reduce({columns}):
            {load("b").replace("a0", "b0")}
            d = sub(b, m)
            e = exp(d){extra}
            s = reduce('sum', e, 'float32')
        store(top, [i], m)
        store(out, [i], s)
"""


def test_one_loop_over_the_row():
    source = generate_source(parse_kernel(text(50304))).text
    assert source.count("for rbase") == 1
    assert "online_sum" in source


@pytest.mark.parametrize("columns", [1, 15, 16, 100, 1000])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_values(run, columns: int, scale: float):
    torch.manual_seed(columns)
    found = run(
        text(columns),
        torch.randn(5 * columns) * scale,
        torch.zeros(5),
        torch.zeros(5),
        config=LONG,
        ulps=64,
        ptx=(90,),
    )
    assert "online_sum" in found


def test_bfloat16(run):
    found = run(
        text(100, "bfloat16"),
        torch.randn(500).bfloat16(),
        torch.zeros(5),
        torch.zeros(5),
        config=LONG,
        ulps=64,
    )
    assert "online_sum" in found


def test_infinities_and_nan(run):
    x = torch.randn(5, 40)
    x[0] = float("-inf")
    x[1, 3] = float("inf")
    x[2, 30] = float("nan")
    x[3, :20] = float("-inf")
    x[4, 7:9] = -3.4028234663852886e38
    run(text(40), x.flatten(), torch.zeros(5), torch.zeros(5), config=LONG, ulps=64)


def test_other_sums_take_two_passes():
    source = generate_source(
        parse_kernel(
            text(50304, extra="\n            e = mul(e, e)".replace("e = mul", "f = mul")).replace(
                "'sum', e", "'sum', f"
            )
        )
    ).text
    assert "online_sum" not in source


def test_a_store_between_the_passes_comes_after(run):
    between = text(100).replace(
        "        for r in reduce(100):\n            b",
        "        store(top, [i], m)\n        for r in reduce(100):\n            b",
    )
    between = between.replace("        store(top, [i], m)\n        store(out", "        store(out")
    assert between.count("store(top") == 1
    assert "online_sum" in run(
        between, torch.randn(500), torch.zeros(5), torch.zeros(5), config=LONG, ulps=64
    )


@pytest.mark.parametrize("length", [100, 96, 131])
@pytest.mark.parametrize("softmax", [True, False])
def test_the_end_of_a_row_stays_in_registers(run, monkeypatch, length: int, softmax: bool):
    monkeypatch.setattr(tiling, "HELD_ELEMENTS", 1)
    text = f"""
@kernel(device='cuda', vector='r')
def rows(x: In('bfloat16', {5 * length}), out: Out('float32', {5 * length})):
    for i in range(5):
        for r in reduce({length}):
            a = load(x, [{length}*i + r], 'bfloat16')
            b = cast(a, 'float32')
            m = reduce('max', b, 'float32')
        for r in reduce({length}):
            a2 = load(x, [{length}*i + r], 'bfloat16')
            b2 = cast(a2, 'float32')
            c = sub(b2, m)
            d = exp(c)
            s = reduce('{"sum" if softmax else "min"}', d, 'float32')
        for r in reduce({length}):
            a3 = load(x, [{length}*i + r], 'bfloat16')
            b3 = cast(a3, 'float32')
            e = sub(b3, m)
            f = exp(e)
            g = div(f, s)
            store(out, [{length}*i + r], g)
"""
    x = torch.randn(5 * length).bfloat16()
    source = run(
        text, x, torch.zeros(5 * length), ulps=20, config=Config(x=1, r=16, num_warps=1), ptx=(90,)
    )
    assert source.count("held") >= 4
    assert source.count("tl.load(x") < 3 * (-(-length // 16))


KEPT = """
@kernel(device='cuda')
def loss(x: In('bfloat16', {size}), place: In('int64', {rows}), out: Out('float32', {rows}), g: Out('bfloat16', {size})):
    for i in range({rows}):
        p = load(place, [i], 'int64')
        for r in reduce({columns}):
            a0 = load(x, [{columns}*i + r], 'bfloat16')
            a = cast(a0, 'float32')
            m = reduce('max', a, 'float32')
        for r in reduce({columns}):
            b0 = load(x, [{columns}*i + r], 'bfloat16')
            b = cast(b0, 'float32')
            d = sub(b, m)
            e = exp(d)
            s = reduce('sum', e, 'float32')
        store(out, [i], s)
        l = log(s)
        for r in reduce({columns}):
            c0 = load(x, [{columns}*i + r], 'bfloat16')
            c = cast(c0, 'float32')
            f = sub(c, m)
            h = sub(f, l)
            q = exp(h)
            k = index_expr(r, 'int64')
            t = eq(k, p)
            one = constant(1.0, 'float32')
            zero = constant(0.0, 'float32')
            w = where(t, one, zero)
            v = sub(q, w)
            u = cast(v, 'bfloat16')
            store(g, [{columns}*i + r], u)
"""


@pytest.mark.parametrize(("columns", "size"), [(96, 32), (104, 32), (552, 256)])
@pytest.mark.parametrize("block", [1, 2])
def test_kept_rows(run, columns: int, size: int, block: int):
    x = torch.randn(7, columns).bfloat16()
    x[0], x[1, 3], x[2, 30], x[3, :20], x[4, 5], x[5] = (
        -torch.inf,
        torch.inf,
        torch.nan,
        -torch.inf,
        90,
        -3.3895e38,
    )
    x[6], x[6, ::9] = -3.3895e38, 2.5e38
    places = torch.tensor([3, 0, -1, 90, columns, 7, 9])
    tensors = x.flatten(), places, torch.zeros(7), torch.zeros(7 * columns).bfloat16()
    config = Config(x=block, r=size, num_warps=1, grid=2)
    found = run(
        KEPT.format(columns=columns, rows=7, size=7 * columns),
        *tensors,
        config=config,
        ulps=128,
        ptx=(80, 90),
    )
    assert "for rbase" not in found and found.count("tl.load(x") == -(-columns // size)
    assert ("tl.arange(0, 64)" in found) == (columns == 552), (
        "the end of a row is as wide as it must be"
    )


def test_wide_rows_of_16_bits_are_kept():
    def chosen(columns: int, rows: int = 8192) -> Config:
        kernel = parse_kernel(KEPT.format(columns=columns, rows=rows, size=rows * columns))
        return tiling.choose_tiling(kernel, tiling.describe(kernel)).config

    assert chosen(50304).grid and chosen(32768 + 8).grid
    assert not chosen(50257).grid, "rows that begin anywhere can't be fetched ahead"
    assert not chosen(65536).grid and not chosen(50304, 64).grid


def test_pairs_of_a_single_row_stay_in_registers():
    pytest.importorskip("triton")
    normalised = """        for r in reduce(10):
            c = load(x, [10*i + r], 'float32')
            t = sub(c, m)
            u = div(t, s)
            store(out, [10*i + r], u)
"""
    kernel = parse_kernel(
        text(10)
        .replace("        store(out, [i], s)\n", normalised)
        .replace("Out('float32', 5))", "Out('float32', 50))")
    )
    config = Config(x=1, r=16, persistent=False, num_warps=1)
    assert "st.shared" not in compile_ptx(generate_source(kernel, config))
