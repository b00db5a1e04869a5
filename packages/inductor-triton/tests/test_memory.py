"""Loads and stores: layouts, masks, indirect indices, atomics, symbolic sizes."""

from __future__ import annotations

import primops
import pytest
import torch
from inductor_triton import Config, compile_graph, generate_source, launch_spec
from loopir import parse_kernel
from primops.testing import trace

TRANSPOSE_ADD = """
@kernel(device='cuda', vector='j', tile='i')
def transpose_add(in0: In('float32', 6000), in1: In('float32', 6000), out: Out('float32', 6000)):
    for i in range(60):
        for j in range(100):
            a = load(in0, [100*i + j], 'float32')
            b = load(in1, [60*j + i], 'float32')
            c = add(a, b)
            store(out, [100*i + j], c)
"""


def test_transposes_use_two_dimensional_tiles(run):
    source = run(TRANSPOSE_ADD, torch.rand(6000), torch.rand(6000), torch.zeros(6000), ptx=(80, 90))
    assert "YBLOCK" in source


def test_batched_transpose(run):
    text = """
@kernel(device='cuda')
def batched(in0: In('float32', 4800), out: Out('float32', 4800)):
    for b in range(3):
        for i in range(40):
            for j in range(20):
                for k in range(2):
                    a = load(in0, [1600*b + i + 40*j + 800*k], 'float32')
                    store(out, [1600*b + 40*i + 2*j + k], a)
"""
    run(text, torch.rand(4800), torch.zeros(4800))
    text = """
@kernel(device='cuda', vector='j', tile='i')
def batched(in0: In('float32', s0*s1*3), out: Out('float32', s0*s1*3), s0: Size(hint=40), s1: Size(hint=50)):
    for b in range(3):
        for i in range(s0):
            for j in range(s1):
                a = load(in0, [s0*s1*b + i + s0*j], 'float32')
                store(out, [s0*s1*b + s1*i + j], a)
"""
    for rows, columns in ((40, 50), (33, 2), (0, 4)):
        n = 3 * rows * columns
        source = run(text, torch.rand(n), torch.zeros(n), sizes=(rows, columns), ptx=(90,))
        assert "YBLOCK" in source


def test_contiguous_loops_become_one(run):
    text = """
@kernel(device='cuda')
def flat(in0: In('float32', 2000), out: Out('float32', 2000)):
    for i in range(10):
        for j in range(20):
            for k in range(10):
                a = load(in0, [200*i + 10*j + k], 'float32')
                store(out, [200*i + 10*j + k], a)
"""
    source = run(text, torch.rand(2000), torch.zeros(2000))
    assert "//" not in source
    assert "%" not in source


def test_no_mask_where_the_block_divides():
    text = """
@kernel(device='cuda')
def copy(in0: In('float32', 1048576), out: Out('float32', 1048576)):
    for i in range(1048576):
        a = load(in0, [i], 'float32')
        store(out, [i], a)
"""
    assert "mask" not in generate_source(parse_kernel(text)).text
    assert "mask" in generate_source(parse_kernel(text.replace("1048576", "1048577"))).text


def test_broadcast_loads_are_not_repeated_per_row(run):
    text = """
@kernel(device='cuda')
def bias(in0: In('float32', 640), in1: In('float32', 64), in2: In('float32', 1), out: Out('float32', 640)):
    for i in range(10):
        for j in range(64):
            a = load(in0, [64*i + j], 'float32')
            b = load(in1, [j], 'float32')
            c = load(in2, [0], 'float32')
            d = mul(a, b)
            e = add(d, c)
            store(out, [64*i + j], e)
"""
    source = run(text, torch.rand(640), torch.rand(64), torch.rand(1), torch.zeros(640), ptx=(80,))
    assert "tl.load(in2)" in source
    assert "xindex" in source


def test_padding_reads_behind_a_mask(run):
    text = """
@kernel(device='cuda')
def pad(in0: In('bfloat16', 30), out: Out('bfloat16', 70)):
    for i in range(7):
        for j in range(10):
            y = index_expr(i - 1, 'int64')
            x = index_expr((j - 2) // 1, 'int64')
            zero = constant(0, 'int64')
            h = constant(5, 'int64')
            w = constant(6, 'int64')
            c0 = le(zero, y)
            c1 = lt(y, h)
            c2 = le(zero, x)
            c3 = lt(x, w)
            m0 = and_(c0, c1)
            m1 = and_(c2, c3)
            m = and_(m0, m1)
            a = load(in0, [6*i + j - 8], 'bfloat16', mask=m, other=-inf)
            store(out, [10*i + j], a)
"""
    run(text, torch.rand(30).bfloat16(), torch.zeros(70).bfloat16(), ptx=(90,))


def test_floor_division_of_negative_positions(run):
    text = """
@kernel(device='cuda')
def floor(out: Out('int64', 40), rest: Out('int64', 40)):
    for i in range(40):
        q = index_expr((i - 20) // 3, 'int64')
        r = index_expr((i - 20) % 3, 'int64')
        store(out, [i], q)
        store(rest, [i], r)
"""
    source = run(
        text, torch.zeros(40, dtype=torch.int64), torch.zeros(40, dtype=torch.int64), ptx=(90,)
    )
    assert "floordiv_int" in source


GATHER = """
@kernel(device='cuda')
def gather(table: In('float32', 200), idx: In('int64', 7), out: Out('float32', 70)):
    for i in range(7):
        for j in range(10):
            k = load(idx, [i], 'int64')
            t = indirect(k, 20)
            a = load(table, [10*t + j], 'float32')
            store(out, [10*i + j], a)
"""


def test_gather(run):
    indices = torch.tensor([0, 19, 3, 3, 7, 1, 0])
    run(GATHER, torch.rand(200), indices, torch.zeros(70), ptx=(80, 90))


@pytest.mark.parametrize("bad", [20, -1, 2**40])
def test_index_out_of_range(run, bad):
    interpret = pytest.importorskip("inductor_triton.launching.interpret")
    kernel = parse_kernel(GATHER)
    launch = interpret.interpreted(generate_source(kernel))
    indices = torch.tensor([0, 19, bad, 3, 7, 1, 0])
    with pytest.raises(IndexError, match="gather"):
        launch(torch.rand(200), indices, torch.zeros(70))


def test_scatter_add(run):
    text = """
@kernel(device='cuda')
def scatter(src: In('float32', 70), idx: In('int32', 7), out: InOut('float32', 200)):
    for i in range(7):
        for j in range(10):
            k = load(idx, [i], 'int32')
            t = indirect(k, 20)
            a = load(src, [10*i + j], 'float32')
            store(out, [10*t + j], a, mode='add')
"""
    indices = torch.tensor([0, 19, 3, 3, 7, 3, 0], dtype=torch.int32)
    run(text, torch.rand(70), indices, torch.rand(200), ptx=(80, 90))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_atomic_add_to_one_place(run, dtype):
    text = f"""
@kernel(device='cuda')
def total(src: In({dtype!r}, 100), out: InOut({dtype!r}, 1)):
    for i in range(100):
        a = load(src, [i], {dtype!r})
        store(out, [0], a, mode='add')
"""
    values = torch.arange(100).to(getattr(torch, dtype))
    run(text, values, values[:1].clone(), ptx=(80, 90))


def test_scatter(run):
    text = """
@kernel(device='cuda')
def put(src: In('float16', 7), idx: In('int64', 7), out: InOut('float16', 20)):
    for i in range(7):
        k = load(idx, [i], 'int64')
        t = indirect(k, 20)
        a = load(src, [i], 'float16')
        store(out, [t], a)
"""
    run(
        text,
        torch.rand(7).half(),
        torch.tensor([0, 19, 3, 4, 7, 8, 11]),
        torch.rand(20).half(),
        ptx=(80,),
    )


def test_gathered_reduction(run):
    text = """
@kernel(device='cuda')
def bag(table: In('float32', 200), idx: In('int64', 12), out: Out('float32', 30)):
    for i in range(3):
        for j in range(10):
            for r in reduce(4):
                k = load(idx, [4*i + r], 'int64')
                t = indirect(k, 20)
                a = load(table, [10*t + j], 'float32')
                s = reduce('sum', a, 'float32')
            store(out, [10*i + j], s)
"""
    for config in (None, Config(x=8, r=2)):
        run(
            text,
            torch.rand(200),
            torch.randint(0, 20, (12,)),
            torch.zeros(30),
            config=config,
            ulps=8,
            ptx=(90,),
        )


BAGS = """
@kernel(device='cuda')
def bags(index: In('int64', 160), table: In('bfloat16', 3200), scale: In('float32', 20), out: Out('float32', 1280)):
    for b in range(4):
        for h in range(5):
            for c in range(64):
                for r in reduce(8):
                    a = load(index, [40*b + 8*h + r], 'int64')
                    i = indirect(a, 50)
                    v = load(table, [64*i + c], 'bfloat16')
                    w = cast(v, 'float32')
                    s = reduce('sum', w, 'float32')
                f = load(scale, [5*b + h], 'float32')
                t = mul(s, f)
                store(out, [320*b + 64*h + c], t)
"""


@pytest.mark.parametrize("block", [32, 64, 128])
def test_a_block_within_one_point_of_the_outer_loops(run, block):
    tensors = (
        torch.randint(50, (160,)),
        torch.randn(3200).bfloat16(),
        torch.randn(20),
        torch.zeros(1280),
    )
    text = run(
        BAGS,
        *tensors,
        config=Config(x=block, r=8, persistent=True, num_warps=1),
        ulps=16,
        ptx=(90,),
    )
    assert ("h = tl.program_id(0)" in text) == (block <= 64), (
        "what depends on it alone has no dimension"
    )


def test_gathers_of_short_rows_take_one_warp():
    assert launch_spec(generate_source(parse_kernel(BAGS))).config.num_warps == 1


def test_symbolic_pointwise(run):
    text = """
@kernel(device='cuda')
def scale(in0: In('float32', 8*s0), in1: In('float32', s0), out: Out('float32', 8*s0), s0: Size(hint=32)):
    for i in range(8):
        for j in range(s0):
            a = load(in0, [s0*i + j], 'float32')
            b = load(in1, [j], 'float32')
            k = index_expr(s0, 'float32')
            c = mul(a, b)
            d = add(c, k)
            store(out, [s0*i + j], d)
"""
    for size in (32, 1, 17, 0):
        run(
            text,
            torch.rand(8 * size),
            torch.rand(size),
            torch.zeros(8 * size),
            sizes=(size,),
            ptx=(90,),
        )


def test_sixty_four_bit_indices_only_for_large_buffers():
    text = """
@kernel(device='cuda')
def big(in0: In('int8', {n}), out: Out('int8', {n})):
    for i in range({n}):
        a = load(in0, [i], 'int8')
        store(out, [i], a)
"""
    small, large = (generate_source(parse_kernel(text.format(n=n))) for n in (2**31 - 1024, 2**31))
    assert launch_spec(small).index == "int32"
    assert launch_spec(large).index == "int64"
    assert "tl.program_id(0).to(tl.int64)" in large.text


def test_names_that_the_source_uses_itself(run):
    text = """
@kernel(device='cuda')
def tl(errors: In('float32', 8), xmask: Out('float32', 8)):
    for xindex in range(8):
        exp32 = load(errors, [xindex], 'float32')
        uniform = exp(exp32)
        store(xmask, [xindex], uniform)
"""
    run(text, torch.rand(8), torch.zeros(8))


def test_in_place(run):
    text = """
@kernel(device='cuda')
def update(p: InOut('float32', 100), g: In('float32', 100)):
    for i in range(100):
        a = load(p, [i], 'float32')
        b = load(g, [i], 'float32')
        c = sub(a, b)
        store(p, [i], c)
        d = load(p, [i], 'float32')
        e = mul(d, d)
        store(p, [i], e)
"""
    run(text, torch.rand(100), torch.rand(100), ptx=(90,))


@pytest.mark.parametrize("accumulate", [False, True])
def test_one_element_is_added_once(accumulate):
    """A kernel without loops has one point, not as many as its block is long."""
    x, index, value = torch.ones(1), torch.tensor([0]), torch.tensor([0.5])
    gm = primops.decompose(trace(lambda x, i, v: x.index_put((i,), v, accumulate), x, index, value))
    (found,) = compile_graph(gm, (x, index, value), interpret=True)(x, index, value)
    assert found.item() == (1.5 if accumulate else 0.5)
