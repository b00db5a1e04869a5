"""Each elementwise operation on each dtype, against the evaluator."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from inductor_triton import compile_ptx, generate_source
from loopir import OPS, Domain, DtypeRule, parse_kernel

FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
DOMAINS = {
    Domain.FLOAT: FLOATS,
    Domain.NUMBER: (*FLOATS, *INTEGERS),
    Domain.INTEGER: (*INTEGERS, torch.bool),
    Domain.ANY: (*FLOATS, *INTEGERS, torch.bool),
}
NOT_OF_BOOL = {"floordiv", "lshift", "rshift", "lt", "le"}
ULPS = {
    "expm1": 6,
    "sinh": 8,
    "cosh": 8,
    "log1p": 6,
    "lgamma": 60,
    "tan": 8,
    "pow": 8,
    "erf": 6,
    "exp": 5,
    "tanh": 5,
}
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    1e-20,
    -1e-20,
    3.5,
    2.5,
    -2.5,
    88.0,
    -88.0,
    math.inf,
    -math.inf,
    math.nan,
]
KEYWORDS = {"and": "and_", "or": "or_", "not": "not_"}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def elementwise_ops(arity: int) -> list[str]:
    rules = (DtypeRule.SAME, DtypeRule.BOOL)
    return [
        op
        for op, spec in OPS.items()
        if spec.arity == arity and spec.rule in rules and op != "scan"
    ]


def values(dtype: torch.dtype, op: str) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([True, False, True, True, False])
    if dtype.is_floating_point:
        generator = torch.Generator().manual_seed(1)
        plain = torch.randn(200, dtype=torch.float64, generator=generator)
        scaled = torch.cat(
            [plain, plain * 30, plain * 1e-3, torch.tensor(SPECIAL, dtype=torch.float64)]
        )
        return scaled.to(dtype)
    if op in ("lshift", "rshift"):
        return torch.tensor([0, 1, 2, 3, 5, 6], dtype=dtype)
    info = torch.iinfo(dtype)
    return torch.tensor(
        [0, 1, 2, 3, 7, 100, info.max, info.min, info.max // 2, -1 if info.min else 9], dtype=dtype
    )


def kernel_text(op: str, arity: int, dtype: torch.dtype, count: int) -> str:
    name = name_of(dtype)
    result = "bool" if OPS[op].rule is DtypeRule.BOOL else name
    inputs = "".join(f"in{k}: In({name!r}, {count}), " for k in range(arity))
    loads = "\n".join(f"        a{k} = load(in{k}, [i], {name!r})" for k in range(arity))
    operands = ", ".join(f"a{k}" for k in range(arity))
    return f"""
@kernel(device='cuda')
def one_{op}({inputs}out: Out({result!r}, {count})):
    for i in range({count}):
{loads}
        t = {KEYWORDS.get(op, op)}({operands})
        store(out, [i], t)
"""


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, dtype) for op in elementwise_ops(1) for dtype in DOMAINS[OPS[op].domain]],
    ids=str,
)
def test_unary(run, op, dtype):
    a = values(dtype, op)
    if op in ("neg", "abs") and not dtype.is_floating_point:
        a = a[a != torch.iinfo(dtype).min] if torch.iinfo(dtype).min else a
    run(kernel_text(op, 1, dtype, len(a)), a, torch.zeros_like(a), ulps=ULPS.get(op, 4))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (o, t)
        for o in elementwise_ops(2)
        for t in DOMAINS[OPS[o].domain]
        if not (t is torch.bool and o in NOT_OF_BOOL)
    ],
    ids=str,
)
def test_binary(run, op, dtype):
    values_a = values(dtype, op)
    values_b = values_a
    if dtype.is_floating_point:
        values_a = torch.cat([values_a[:20], values_a[-17:]])
        values_b = torch.cat([values_a[5:15] * 3, values_a[-17:]])
    a, b = _pairs(values_a, values_b)
    if op in ("remainder", "fmod", "floordiv") and not dtype.is_floating_point:
        keep = (
            (b != 0) & ~((b == -1) & (a == torch.iinfo(dtype).min))
            if torch.iinfo(dtype).min
            else b != 0
        )
        a, b = a[keep], b[keep]
    if op in ("remainder", "fmod"):
        keep = torch.ones_like(a, dtype=torch.bool)
        if dtype.is_floating_point:
            keep = torch.isfinite(a) & torch.isfinite(b)
        a, b = a[keep], b[keep]
    result = torch.bool if OPS[op].rule is DtypeRule.BOOL else dtype
    run(
        kernel_text(op, 2, dtype, len(a)),
        a,
        b,
        torch.zeros(len(a), dtype=result),
        ulps=ULPS.get(op, 4),
    )


def _pairs(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.meshgrid(a, b, indexing="ij")
    return x.reshape(-1).contiguous(), y.reshape(-1).contiguous()


CASTS = (*FLOATS, torch.float16, torch.bfloat16, *INTEGERS, torch.bool)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(CASTS, CASTS)), ids=name_of)
def test_cast(run, source, target):
    if source is torch.bool:
        a = torch.tensor([True, False, True])
    elif source.is_floating_point:
        a = torch.tensor(
            [0.0, 1.0, -1.0 if target is not torch.uint8 else 4.0, 2.5, 3.99, 100.7, 0.1, 65.3],
            dtype=source,
        )
        if target.is_floating_point:
            a = torch.cat(
                [
                    a,
                    torch.tensor(
                        [math.inf, -math.inf, math.nan, 1.0 + 2**-9, 1 + 3 * 2**-9, 3e4],
                        dtype=source,
                    ),
                ]
            )
    else:
        a = torch.tensor([0, 1, 2, 100, 127, 255 if source is torch.uint8 else -3], dtype=source)
    n = len(a)
    text = f"""
@kernel(device='cuda')
def convert(in0: In({name_of(source)!r}, {n}), out: Out({name_of(target)!r}, {n})):
    for i in range({n}):
        a = load(in0, [i], {name_of(source)!r})
        t = cast(a, {name_of(target)!r})
        store(out, [i], t)
"""
    run(text, a, torch.zeros(n, dtype=target), ulps=0.5)


def test_bitcast(run):
    a = torch.randn(10)
    text = """
@kernel(device='cuda')
def bits(in0: In('float32', 10), out: Out('int32', 10)):
    for i in range(10):
        a = load(in0, [i], 'float32')
        t = bitcast(a, 'int32')
        store(out, [i], t)
"""
    run(text, a, torch.zeros(10, dtype=torch.int32))


@pytest.mark.parametrize("dtype", CASTS, ids=name_of)
def test_where_and_constants(run, dtype):
    n, name = 20, name_of(dtype)
    number = {torch.bool: "True"}.get(dtype, "1.5" if dtype.is_floating_point else "3")
    a = torch.arange(n).to(dtype)
    text = f"""
@kernel(device='cuda')
def select(in0: In({name!r}, {n}), out: Out({name!r}, {n}), other: Out({name!r}, {n})):
    for i in range({n}):
        a = load(in0, [i], {name!r})
        k = index_expr(i, 'int64')
        five = constant(5, 'int64')
        c = lt(k, five)
        x = constant({number}, {name!r})
        t = where(c, a, x)
        store(out, [i], t)
        store(other, [i], x)
"""
    run(text, a, torch.zeros_like(a), torch.zeros_like(a))


def test_float64_constants_are_exact(run):
    text = """
@kernel(device='cuda')
def exact(in0: In('float64', 8), out: Out('float64', 8)):
    for i in range(8):
        a = load(in0, [i], 'float64')
        k = constant(0.1, 'float64')
        t = add(a, k)
        u = maximum(t, k)
        v = mul(k, k)
        w = add(u, v)
        store(out, [i], w)
"""
    run(text, torch.randn(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64), ulps=1)


@pytest.mark.parametrize("start", [4294967290, 8589934588, 8589934584, 0])
@pytest.mark.parametrize(("op", "each"), [("uniform", 4), ("uniform16", 8)])
def test_uniform(run, op: str, each: int, start: int):
    text = f"""
@kernel(device='cuda')
def draw(in0: In('int64', 1), out: Out('float32', 1000)):
    for i in range(1000):
        s = load(in0, [0], 'int64')
        c = index_expr(i + {start}, 'int64')
        u = {op}(s, c)
        store(out, [i], u)
"""
    source = run(text, torch.tensor([-(2**40) + 12345]), torch.zeros(1000), ulps=0)
    assert (f"uniform{each}(s" in source) == (start % each == 0)


UNIFORM_ALONG = {
    "rows": """
@kernel(device='cuda', vector='r0')
def draw(in0: In('int64', 1), out: Out('float32', 12)):
    for x0 in range(12):
        s = load(in0, [0], 'int64')
        for r0 in reduce(200):
            c = index_expr(1000*x0 + r0 + 16, 'int64')
            u = {op}(s, c)
            t = reduce('max', u, 'float32')
        store(out, [x0], t)
""",
    "columns": """
@kernel(device='cuda', vector='x0')
def draw(in0: In('int64', 1), out: Out('float32', 72)):
    for x0 in range(72):
        s = load(in0, [0], 'int64')
        for r0 in reduce(50):
            c = index_expr(72*r0 + x0, 'int64')
            u = {op}(s, c)
            t = reduce('max', u, 'float32')
        store(out, [x0], t)
""",
    "parts": """
@kernel(device='cuda', vector='x1')
def draw(in0: In('int64', 1), out: Out('float32', 288)):
    for x0 in range(4):
        for x1 in range(72):
            s = load(in0, [0], 'int64')
            for r0 in reduce(50):
                c = index_expr(3600*x0 + 72*r0 + x1, 'int64')
                u = {op}(s, c)
                t = reduce('max', u, 'float32')
            store(out, [72*x0 + x1], t)
""",
    "odd rows": """
@kernel(device='cuda', vector='r0')
def draw(in0: In('int64', 1), out: Out('float32', 12)):
    for x0 in range(12):
        s = load(in0, [0], 'int64')
        for r0 in reduce(203):
            c = index_expr(203*x0 + r0, 'int64')
            u = {op}(s, c)
            t = reduce('max', u, 'float32')
        store(out, [x0], t)
""",
    "tiles": """
@kernel(device='cuda', vector='x1', tile='x0')
def draw(in0: In('int64', 1), in1: In('float32', 6400), out: Out('float32', 6400)):
    for x0 in range(80):
        for x1 in range(80):
            s = load(in0, [0], 'int64')
            a = load(in1, [80*x1 + x0], 'float32')
            c = index_expr(80*x0 + x1, 'int64')
            u = {op}(s, c)
            t = add(a, u)
            store(out, [80*x0 + x1], t)
""",
}


@pytest.mark.parametrize(("op", "each"), [("uniform", 4), ("uniform16", 8)])
@pytest.mark.parametrize("name", UNIFORM_ALONG)
def test_uniform_along_an_axis(run, name: str, op: str, each: int):
    sizes = {"tiles": (6400, 6400), "columns": (72,), "parts": (288,)}.get(name, (12,))
    tensors = [torch.zeros(size) for size in sizes]
    source = run(
        UNIFORM_ALONG[name].format(op=op),
        torch.tensor([987654321987654321]),
        *tensors,
        ulps=0,
        ptx=(90,),
    )
    assert (f"uniform{each}(" in source) == (name != "odd rows")


def test_gelu_in_one_function(run):
    text = """
@kernel(device='cuda')
def gelu(x: In('float32', 4000), out: Out('bfloat16', 4000)):
    for i in range(4000):
        a = load(x, [i], 'float32')
        h = constant(0.5, 'float32')
        r = constant(0.7071067811865476, 'float32')
        one = constant(1.0, 'float32')
        b = mul(a, r)
        c = erf(b)
        d = add(c, one)
        e = mul(a, h)
        f = mul(e, d)
        g = cast(f, 'bfloat16')
        store(out, [i], g)
"""
    found = run(
        text,
        torch.linspace(-3.5, 6, 4000),
        torch.zeros(4000, dtype=torch.bfloat16),
        ulps=1.01,
        ptx=(90,),
    )
    assert "one_plus_erf16" in found
    wide = text.replace("'bfloat16'", "'float32'").replace("g = cast(f, 'float32')", "g = log(d)")
    assert "one_plus_erf32" not in generate_source(parse_kernel(wide)).text, (
        "a logarithm magnifies the error"
    )
    x = torch.linspace(-2, 6, 4000)
    assert "one_plus_erf32" in run(
        wide.replace("g = log(d)", "g = mul(f, h)"), x, torch.zeros(4000), ulps=30
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("product", ["mul(a, a)", "exp(a)"])
def test_what_is_subtracted_from_itself_is_zero(run, product: str, dtype: torch.dtype):
    """Fused into the subtraction, one product would not be rounded while the other is."""
    text = f"""
@kernel(device='cuda')
def difference(x: In('{name_of(dtype)}', s0), least: Out('{name_of(dtype)}', 1), s0: Size(hint=5)):
    for i in reduce(s0):
        a = load(x, [i], '{name_of(dtype)}')
        b = {product}
        c = sub(b, b)
        d = floor(c)
        e = reduce('min', d, '{name_of(dtype)}')
    store(least, [0], e)
"""
    x = torch.linspace(0, 20, 300, dtype=dtype)
    bits = 8 * dtype.itemsize
    assert f"sub_rn{bits}(b, b)" in run(text, x, torch.ones(1, dtype=dtype), sizes=(300,))
    assert f"sub.rn.f{bits}" in compile_ptx(generate_source(parse_kernel(text)), 90)


def test_a_product_of_one_use_may_be_fused_into_the_addition(run):
    text = """
@kernel(device='cuda')
def sum_of(x: In('float32', 300), out: Out('float32', 300)):
    for i in range(300):
        a = load(x, [i], 'float32')
        b = mul(a, a)
        c = add(b, a)
        store(out, [i], c)
"""
    assert "b + a" in run(text, torch.randn(300), torch.ones(300))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_8_bits(dtype):
    pytest.importorskip("triton")
    from inductor_triton.launching.interpret import interpreted

    def launch(text, *tensors):
        source = generate_source(parse_kernel(text))
        interpreted(source)(*tensors)
        assert ".target sm_80" in compile_ptx(source, 80)

    name = str(dtype).removeprefix("torch.")
    there = f"""
@kernel(device='cuda')
def there(in0: In('float32', 40960), out: Out('{name}', 40960)):
    for i in range(40960):
        a = load(in0, [i], 'float32')
        t = cast(a, '{name}')
        store(out, [i], t)
"""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    exact = codes.float()
    finite = exact[exact.isfinite()].sort().values
    between = (finite[1:] + finite[:-1]) / 2
    edges = torch.tensor(
        [
            0.0,
            -0.0,
            math.inf,
            -math.inf,
            math.nan,
            464.0,
            464.1,
            480.0,
            61439.0,
            61440.0,
            65536.0,
            1e30,
            1e-42,
        ]
    )
    values = torch.cat(
        [
            exact,
            between,
            torch.nextafter(between, torch.tensor(math.inf)),
            -edges,
            torch.randn(20000) * 300,
        ]
    )
    values = torch.cat([values, torch.randn(40960 - len(values)) * 0.01])
    result = torch.zeros(40960, dtype=dtype)
    launch(there, values, result)
    assert torch.equal(
        result.float().nan_to_num(7777.0), values.to(dtype).float().nan_to_num(7777.0)
    )
    assert torch.equal(
        result.view(torch.uint8)[:256][~exact.isnan()], codes.view(torch.uint8)[~exact.isnan()]
    )
    back = f"""
@kernel(device='cuda')
def back(in0: In('{name}', 256), out: Out('bfloat16', 256)):
    for i in range(256):
        a = load(in0, [i], '{name}')
        t = cast(a, 'bfloat16')
        store(out, [i], t)
"""
    wide = torch.zeros(256, dtype=torch.bfloat16)
    launch(back, codes, wide)
    torch.testing.assert_close(wide, codes.to(torch.bfloat16), rtol=0, atol=0, equal_nan=True)
