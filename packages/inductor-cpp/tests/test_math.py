"""Error bounds of the elementary functions against float64, and their special values."""

from __future__ import annotations

import math

import pytest
import torch
from loopir import parse_kernel

BOUNDS = {
    "exp": (1.0, -103.0, 88.7), "expm1": (1.5, -20.0, 88.0), "log": (0.9, 1e-38, 3e38),
    "log2": (0.9, 1e-38, 3e38),
    "log1p": (2.5, -0.999, 1e6), "tanh": (3.0, -10.0, 10.0), "erf": (2.8, -4.0, 4.0),
    "sin": (2.2, -9000.0, 9000.0),
    "cos": (2.2, -9000.0, 9000.0), "tan": (1.0, -9000.0, 9000.0), "sinh": (2.0, -80.0, 80.0),
    "cosh": (1.2, -80.0, 80.0),
    "atan": (1.0, -1e6, 1e6), "sqrt": (0.5, 0.0, 3e38),
    "rsqrt": (1.5, 1e-37, 3e38), "floor": (0.0, -1e9, 1e9), "ceil": (0.0, -1e9, 1e9),
    "trunc": (0.0, -1e9, 1e9),
    "round": (0.0, -1e9, 1e9),
}  # fmt: skip
"""Function: (largest error in units of the last place, least and greatest argument)."""

SPECIAL = torch.tensor(
    [
        math.nan,
        math.inf,
        -math.inf,
        0.0,
        -0.0,
        1e-45,
        -1e-45,
        1e-39,
        -1e-39,
        3.4e38,
        -3.4e38,
        1.0,
        -1.0,
        104.0,
        -104.0,
        1e-4,
        -1e-4,
    ]
)
N = 40_000


def arguments(low: float, high: float) -> torch.Tensor:
    """Uniform, tiny and logarithmically spread arguments inside the interval."""
    random = torch.Generator().manual_seed(7)
    uniform = torch.rand(N, generator=random, dtype=torch.float64) * (high - low) + low
    exponents = torch.rand(N, generator=random, dtype=torch.float64) * 2 - 1
    spread = torch.exp2(exponents * 126) * torch.where(
        torch.rand(N, generator=random) < 0.5, -1.0, 1.0
    )
    near = torch.randn(N, generator=random, dtype=torch.float64)
    joined = torch.cat([uniform, spread, near]).float()
    return joined[(joined >= low) & (joined <= high)]


def function_text(op: str, n: int, axis: str | None = "p0") -> str:
    vector = f", vector={axis!r}" if axis else ""
    return f"""
@kernel(device='cpu'{vector})
def {op}_kernel(in0: In('float32', {n}), out0: Out('float32', {n})):
    for p0 in range({n}):
        a = load(in0, [p0], 'float32')
        y = {op}(a)
        store(out0, [p0], y)
"""


def ulp_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error in units of the last place of the exact result (denormal results count in
    the least denormal).
    """
    _, exponent = torch.frexp(exact)
    unit = torch.exp2((exponent.clamp(min=-125) - 24).double())
    return ((actual.double() - exact).abs() / unit).max().item()


@pytest.fixture
def launches(harness_any):
    inputs = {op: arguments(low, high) for op, (_, low, high) in BOUNDS.items()}
    kernels = [parse_kernel(function_text(op, len(inputs[op]))) for op in BOUNDS]
    return {
        op: (inputs[op], launch)
        for op, launch in zip(BOUNDS, harness_any.build(*kernels), strict=True)
    }


def test_error_bounds(launches):
    wrong = []
    for op, (x, launch) in launches.items():
        out = torch.empty_like(x)
        launch(x, out)
        exact = getattr(torch, op)(x.double())
        finite = exact.abs() < 3.4028235e38
        error = ulp_error(out[finite], exact[finite])
        if not error <= BOUNDS[op][0]:
            relative = ((out[finite].double() - exact[finite]) / exact[finite]).abs().nan_to_num()
            wrong.append(f"{op}: {error:.2f} ULP, worst near {x[finite][relative.argmax()].item()}")
    assert not wrong, "\n".join(wrong)


def test_special_values(harness_any):
    n = len(SPECIAL)
    for op in BOUNDS:
        harness_any.add(function_text(op, n), SPECIAL, torch.zeros(n), label=op, rtol=2e-6)
    harness_any.compare()


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_large_arguments_are_reduced_exactly(harness_any, op):
    x = torch.tensor([1e4, 123456.0, 3e7, 1e30, -5e20, 2.0])
    harness_any.add(function_text(op, 6), x, torch.zeros(6), label=op, rtol=3e-7)
    harness_any.compare()


@pytest.mark.parametrize("op", ["exp", "log", "tanh", "erf", "lgamma"])
def test_scalars_agree_with_torch(harness, op):
    x = torch.rand(50) * 3 + 0.1
    harness.add(function_text(op, 50, None), x, torch.zeros(50), label=op)
    harness.compare()
