"""Every elementwise operation and dtype against the evaluator, as vectors on each instruction set
and as scalars.
"""

from __future__ import annotations

import math
import zlib

import pytest
import torch
from inductor_cpp.kernels.elementwise import expression
from loopir import OPS, Domain, DtypeRule, format_kernel, parse_kernel

FLOATS = ["float32", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8"]
HALVES = ["float16", "bfloat16"]
DOMAINS = {
    Domain.ANY: [*FLOATS, *INTEGERS, "bool"],
    Domain.NUMBER: FLOATS + INTEGERS,
    Domain.FLOAT: FLOATS,
    Domain.INTEGER: [*INTEGERS, "bool"],
}
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.5, math.inf, -math.inf, math.nan, 1e-40,
    -1e-40, 1e-30, 1e30, 88.0,
    -88.0, 100.0, -104.0, 0.25, 0.75, 1e-3, 7.25, 12345.678, -12345.678, 3.4e38, 0.65, 4.0, -4.0,
    20000.0,
]  # fmt: skip
N = 133
NOT_ELEMENTWISE = {
    "load",
    "store",
    "index_expr",
    "indirect",
    "constant",
    "cast",
    "bitcast",
    "where",
    "uniform",
    "uniform16",
    "reduce",
    "scan",
}
DIVISIONS = {"floordiv", "remainder", "fmod"}
BITCASTS = [
    ("float32", "int32"), ("int32", "float32"), ("float64", "int64"), ("int64", "float64"),
    ("bfloat16", "int16"),
    ("int16", "float16"), ("uint8", "int8"), ("int8", "uint8"), ("float16", "bfloat16"),
]  # fmt: skip


def sample(name: str, seed: int, *, divisor: bool = False) -> torch.Tensor:
    """Values of a dtype, special ones first, in a shuffled order."""
    random = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
    dtype = getattr(torch, name)
    if dtype is torch.bool:
        return torch.rand(N, generator=random) < 0.5
    if dtype.is_floating_point:
        values = torch.randn(N, generator=random, dtype=torch.float64) * 3
        values[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.float64)[
            torch.randperm(len(SPECIAL), generator=random)
        ]
        return values.to(dtype)
    limits = torch.iinfo(dtype)
    values = torch.randint(max(limits.min, -100), min(limits.max, 100), (N,), generator=random).to(
        dtype
    )
    values[:4] = torch.tensor([limits.min, limits.max, 0, 1]).to(dtype)
    return torch.where(values == 0, torch.ones_like(values), values) if divisor else values


def elementwise_text(inputs: list[str], output: str, call: str, vector: bool) -> str:
    """A kernel that applies one operation to ``N`` elements."""
    buffers = [
        *(f"in{n}: In('{d}', {N})" for n, d in enumerate(inputs)),
        f"out0: Out('{output}', {N})",
    ]
    loads = [f"v{n} = load(in{n}, [p0], '{d}')" for n, d in enumerate(inputs)]
    body = "\n        ".join([*loads, f"w = {call}", "store(out0, [p0], w)"])
    axis = ", vector='p0'" if vector else ""
    return (
        f"@kernel(device='cpu'{axis})\ndef kernel0({', '.join(buffers)}):\n    for p0 in "
        f"range({N}):\n        {body}\n"
    )


def cases():
    """(inputs, output dtype, call) of every operation and dtype."""
    for name, spec in OPS.items():
        if name in NOT_ELEMENTWISE:
            continue
        method = f"{name}_" if name in ("and", "or", "not") else name
        for dtype in DOMAINS[spec.domain]:
            if dtype == "bool" and name in ("floordiv", "lshift", "rshift"):
                continue  # torch has none of these for bool
            operands = ", ".join(f"v{n}" for n in range(spec.arity))
            yield (
                name,
                [dtype] * spec.arity,
                "bool" if spec.rule is DtypeRule.BOOL else dtype,
                f"{method}({operands})",
            )
    kinds = [*FLOATS, *INTEGERS, "bool", *HALVES]
    for source in kinds:
        for target in kinds:
            yield "cast", [source], target, f"cast(v0, '{target}')"
        yield "where", ["bool", source, source], source, "where(v0, v1, v2)"
    for source, target in BITCASTS:
        yield "bitcast", [source], target, f"bitcast(v0, '{target}')"


def add_all(harness, vector: bool) -> None:
    for op, inputs, output, call in cases():
        tensors = [sample(d, n, divisor=op in DIVISIONS and n == 1) for n, d in enumerate(inputs)]
        # others have results of their own, as in eager mode
        if op == "cast" and harness.generator.toolchain.isa == "neon":
            tensors = [
                torch.where(t.double().abs() < 2**31, t, torch.zeros_like(t)) for t in tensors
            ]
        label = f"{op} {inputs} -> {output}"
        harness.add(
            elementwise_text(inputs, output, call, vector),
            *tensors,
            torch.zeros(N, dtype=getattr(torch, output)),
            label=label,
        )


def test_vectors_equal_evaluator(harness_any):
    add_all(harness_any, vector=True)
    harness_any.compare()


def test_scalars_equal_evaluator(harness):
    add_all(harness, vector=False)
    harness.compare()


@pytest.mark.parametrize("vector", [True, False])
def test_negative_zero_survives_constants_and_selection(harness, vector):
    text = elementwise_text(["bool"], "float32", "where(v0, a, b)", vector).replace(
        "w = where",
        "a = constant(-0.0, 'float32')\n        b = constant(1.5, 'float32')\n        w = where",
    )
    (launch,) = harness.build(parse_kernel(text))
    out = torch.zeros(N)
    launch(torch.ones(N, dtype=torch.bool), out)
    assert torch.signbit(out).all()
    assert "-0.0" in format_kernel(parse_kernel(text))


@pytest.mark.parametrize("op", sorted(DIVISIONS))
@pytest.mark.parametrize("vector", [True, False])
def test_integer_division_by_zero_raises_as_eager(harness, op, vector):
    (launch,) = harness.build(
        parse_kernel(elementwise_text(["int32", "int32"], "int32", f"{op}(v0, v1)", vector))
    )
    divisors = torch.ones(N, dtype=torch.int32)
    launch(torch.ones(N, dtype=torch.int32), divisors, torch.zeros(N, dtype=torch.int32))
    divisors[N - 1] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        launch(torch.ones(N, dtype=torch.int32), divisors, torch.zeros(N, dtype=torch.int32))


QUOTIENT = """
@kernel(device='cpu', vector='r0')
def kernel0(in0: In('float32', 200), in1: In('float32', 1000), out0: Out('float32', 200000)):
    for p0 in range(200):
        d = load(in0, [p0], 'float32')
        for r0 in reduce(1000):
            v = load(in1, [r0], 'float32')
            w = div(v, d)
            store(out0, [1000*p0 + r0], w)
"""


def test_quotients_by_a_number_are_rounded_as_divisions(harness_any):
    torch.manual_seed(0)
    (launch,) = harness_any.build(parse_kernel(QUOTIENT))
    divisors = torch.cat(
        [torch.tensor([*SPECIAL, 2.0**100, 2.0**-100, 2.0**101, 2.0**-101]), torch.randn(200)]
    )[:200]
    x, out = (
        torch.cat([torch.tensor(SPECIAL), torch.randn(1000), torch.exp(20 * torch.randn(500))])[
            :1000
        ],
        torch.empty(200000),
    )
    launch(divisors, x, out)
    expected = (x / divisors[:, None]).flatten()
    normal = ~(expected.abs() < 2.0**-100)
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.nan_to_num()[normal], expected.nan_to_num()[normal])
    torch.testing.assert_close(out[~normal], expected[~normal], rtol=1e-6, atol=3e-45)


def test_a_negative_literal_is_negated():
    """``--1.5f`` decrements, which no literal allows."""
    assert expression("neg", ["-1.5f"], torch.float32) == "(- -1.5f)"
