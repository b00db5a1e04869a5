"""Reductions and scans: every kind, dtype and structure, against the evaluator."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from inductor_triton import Config
from inductor_triton.kernels import tiling
from inductor_triton.kernels.heuristics import LONG_COLUMNS, Workload, reduction
from loopir import parse_kernel

SIZES = (0, 1, 7, 16, 17, 1000)
KINDS = ("sum", "prod", "max", "min", "argmax", "argmin")
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8)
LOOPED = Config(x=4, r=16, persistent=False)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def reduce_text(
    kind: str, dtype: torch.dtype, rows: int, columns: int, column_reduction: bool = False
) -> str:
    name = name_of(dtype)
    result = "int64" if kind.startswith("arg") else name
    index = f"{rows}*r + i" if column_reduction else f"{columns}*i + r"
    return f"""
@kernel(device='cuda')
def reduce_{kind}(in0: In({name!r}, {rows * columns}), out: Out({result!r}, {rows})):
    for i in range({rows}):
        for r in reduce({columns}):
            a = load(in0, [{index}], {name!r})
            t = reduce({kind!r}, a, {result!r})
        store(out, [i], t)
"""


def data(dtype: torch.dtype, count: int, kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    if dtype.is_floating_point:
        values = torch.randn(count, dtype=dtype, generator=generator)
        return {"prod": values.sign() * (1 + values * 0.01), "sum": values.abs()}.get(kind, values)
    low = 0 if dtype is torch.uint8 else -5
    return torch.randint(low, 6, (count,), generator=generator).to(dtype)


def check_reduce(run, kind, dtype, rows, columns, config=None, column_reduction=False, **options):
    if kind.startswith("arg") and columns == 0:
        pytest.skip("an empty argmax has no value")
    result = torch.zeros(rows, dtype=torch.int64 if kind.startswith("arg") else dtype)
    text = reduce_text(kind, dtype, rows, columns, column_reduction)
    return run(
        text, data(dtype, rows * columns, kind), result, config=config, ulps=4 + columns, **options
    )


@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [None, LOOPED], ids=["default", "looped"])
def test_sizes(run, kind, columns, config):
    check_reduce(run, kind, torch.float32, 5, columns, config)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("config", [None, LOOPED], ids=["default", "looped"])
def test_dtypes(run, kind, dtype, config):
    if kind in ("sum", "prod") and dtype in (torch.int8, torch.uint8):
        dtype = torch.int16
    check_reduce(run, kind, dtype, 3, 37, config)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_columns(run, kind, rows):
    check_reduce(run, kind, torch.float32, rows, 100, column_reduction=True)


@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("config", [None, LOOPED], ids=["default", "looped"])
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_special_values(run, kind, config, special):
    values = torch.randn(4, 40)
    values[0, 3] = values[0, 20] = special
    values[1, 39] = special
    values[2, :] = special
    values[3, 5] = values[3, 6] = values[3, 30] = 9.0
    result = torch.zeros(4, dtype=torch.int64 if kind.startswith("arg") else torch.float32)
    run(reduce_text(kind, torch.float32, 4, 40), values.reshape(-1), result, config=config)


@pytest.mark.parametrize("kind", ["any", "all"])
@pytest.mark.parametrize("columns", [0, 1, 17, 64])
@pytest.mark.parametrize("config", [None, LOOPED], ids=["default", "looped"])
def test_booleans(run, kind, columns, config):
    values = torch.zeros(4, columns, dtype=torch.bool)
    values[1, :] = True
    values[2, : columns // 2] = True
    text = reduce_text(kind, torch.bool, 4, columns)
    run(text, values.reshape(-1), torch.zeros(4, dtype=torch.bool), config=config)


@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize("columns", [1, 16, 37, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=name_of)
@pytest.mark.parametrize("config", [None, LOOPED], ids=["default", "looped"])
def test_scan(run, kind, columns, dtype, config):
    name, count = name_of(dtype), 3 * columns
    text = f"""
@kernel(device='cuda')
def scan_rows(in0: In({name!r}, {count}), out: Out({name!r}, {count})):
    for i in range(3):
        for r in reduce({columns}):
            a = load(in0, [{columns}*i + r], {name!r})
            t = scan({kind!r}, a)
            store(out, [{columns}*i + r], t)
"""
    values = data(dtype, count, kind)
    values = values.abs() if dtype.is_floating_point else values
    run(text, values, torch.zeros_like(values), config=config, ulps=8 + columns)


def test_reduction_over_two_loops_of_everything(run):
    text = """
@kernel(device='cuda')
def total(in0: In('float32', 60), in1: In('float32', 6), out: Out('float32', 1), where_: Out('int64', 1)):
    for r0 in reduce(10):
        for r1 in reduce(6):
            a = load(in0, [r0 + 10*r1], 'float32')
            b = load(in1, [r1], 'float32')
            c = mul(a, b)
            t = reduce('sum', c, 'float32')
            p = reduce('argmax', c, 'int64')
    store(out, [0], t)
    store(where_, [0], p)
"""
    for config in (None, Config(x=1, r=16)):
        run(
            text,
            torch.rand(60),
            torch.rand(6),
            torch.zeros(1),
            torch.zeros(1, dtype=torch.int64),
            config=config,
            ulps=60,
        )


def test_a_value_that_does_not_vary_is_reduced_over_every_point(run):
    text = """
@kernel(device='cuda')
def constant_sum(in0: In('float32', 3), out: Out('float32', 3), count: Out('int64', 3)):
    for i in range(3):
        a = load(in0, [i], 'float32')
        for r in reduce(10):
            t = reduce('sum', a, 'float32')
            one = constant(1, 'int64')
            n = reduce('sum', one, 'int64')
        store(out, [i], t)
        store(count, [i], n)
"""
    for config in (None, LOOPED, Config(x=4, r=16, persistent=True)):
        run(
            text,
            torch.rand(3),
            torch.zeros(3),
            torch.zeros(3, dtype=torch.int64),
            config=config,
            ulps=20,
        )


VARIANCE = """
@kernel(device='cuda')
def variance(in0: In('bfloat16', 600), out: Out('bfloat16', 600), stat: Out('float32', 6)):
    for i in range(6):
        for r in reduce(100):
            a = load(in0, [100*i + r], 'bfloat16')
            b = cast(a, 'float32')
            s = reduce('sum', b, 'float32')
        n = constant(100, 'float32')
        mean = div(s, n)
        for r in reduce(100):
            a2 = load(in0, [100*i + r], 'bfloat16')
            b2 = cast(a2, 'float32')
            d = sub(b2, mean)
            q = mul(d, d)
            v = reduce('sum', q, 'float32')
        w = div(v, n)
        e = constant(1e-05, 'float32')
        w2 = add(w, e)
        rs = rsqrt(w2)
        store(stat, [i], rs)
        for r in reduce(100):
            a3 = load(in0, [100*i + r], 'bfloat16')
            b3 = cast(a3, 'float32')
            d3 = sub(b3, mean)
            y = mul(d3, rs)
            z = cast(y, 'bfloat16')
            store(out, [100*i + r], z)
"""


@pytest.mark.parametrize("config", [None, LOOPED], ids=["default", "looped"])
def test_several_inner_bodies(run, config):
    source = run(
        VARIANCE,
        torch.randn(600).bfloat16(),
        torch.zeros(600).bfloat16(),
        torch.zeros(6),
        config=config,
        ulps=128,
        ptx=(80, 90),
    )
    # One block holds the row: it is read once, whatever the number of bodies that load it; loops
    # have masked ends.
    assert source.count("tl.load") == (6 if config else 1)


def test_symbolic_sizes_are_looped_and_independent_of_the_hint(run):
    text = """
@kernel(device='cuda')
def row_sums(in0: In('float32', s0*s1), out: Out('float32', s0), s0: Size(hint=4), s1: Size(hint=100)):
    for i in range(s0):
        for r in reduce(s1):
            a = load(in0, [s1*i + r], 'float32')
            t = reduce('sum', a, 'float32')
        store(out, [i], t)
"""
    for rows, columns in ((4, 100), (1, 1), (7, 300), (0, 5), (3, 0)):
        source = run(
            text,
            torch.rand(rows * columns),
            torch.zeros(rows),
            sizes=(rows, columns),
            ulps=300,
            ptx=(90,),
        )
    assert "INDEX: tl.constexpr" in source


def test_a_later_body_reads_what_an_earlier_one_stored(run):
    text = """
@kernel(device='cuda')
def in_place(x: InOut('float32', 90), out: Out('float32', 3)):
    for i in range(3):
        for r in reduce(30):
            a = load(x, [30*i + r], 'float32')
            b = add(a, a)
            store(x, [30*i + r], b)
        for r in reduce(30):
            c = load(x, [30*i + r], 'float32')
            t = reduce('sum', c, 'float32')
        store(out, [i], t)
"""
    for config in (None, LOOPED):
        source = run(text, torch.rand(90), torch.zeros(3), config=config, ulps=30, ptx=(90,))
        assert ("tl.debug_barrier()" in source) == (config is LOOPED)


def test_columns_of_many_operands_take_few_elements_per_program():
    """They wait for memory, so many small programs do; long arithmetic shares what it computes over
    wide ones.
    """
    work = Workload(256, 100352, 2, operations=LONG_COLUMNS + 1, inner_contiguous=False)
    assert reduction(work) == Config(x=64, r=16, num_warps=2)
    assert reduction(replace(work, long_arithmetic=True)) == Config(x=256, r=4, num_warps=8)


@pytest.mark.parametrize(
    ("columns", "block", "persistent"), [(1024, 1024, True), (8192, 2048, False)]
)
def test_the_product_with_a_vector_has_two_rows_per_program(
    columns: int, block: int, persistent: bool
):
    kernel = parse_kernel(f"""
@kernel(device='cuda', vector='r')
def product(w: In('bfloat16', {512 * columns}), x: In('bfloat16', {columns}), table: In('bfloat16', {1 << 28}), out: Out('float32', 512)):
    for i in range(512):
        for r in reduce({columns}):
            a = load(w, [{columns}*i + r], 'bfloat16')
            b = load(x, [r], 'bfloat16')
            c = cast(a, 'float32')
            d = cast(b, 'float32')
            e = mul(c, d)
            s = reduce('sum', e, 'float32')
        f = load(table, [i + 512], 'bfloat16')
        g = cast(f, 'float32')
        h = add(s, g)
        store(out, [i], h)
""")
    work = tiling.describe(kernel)
    assert (work.inner_contiguous, work.shares) == (True, True)
    config = reduction(work)
    assert (config.x, config.r, config.persistent) == (2, block, persistent)
