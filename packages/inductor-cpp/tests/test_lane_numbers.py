"""Places that are compared with one number per row, and log-softmax with its gradient: each
exponential once.
"""

from __future__ import annotations

import pytest
import torch
from inductor_cpp import kernel_text
from loopir import parse_kernel

COMPARED = """
@kernel(device='cpu', vector='r0')
def compared(in0: In('int64', 12), in1: In('float32', 12*{n}), out0: Out('float32', 12*{n}), out1: Out('float32', 12)):
    for p0 in range(12):
        k = load(in0, [p0], 'int64')
        for r0 in reduce({n}):
            i = index_expr(r0 + {offset}, 'int64')
            m = {op}({operands})
            v = load(in1, [{n}*p0 + r0], 'float32')
            z = constant(0.0, 'float32')
            y = where(m, v, z)
            store(out0, [{n}*p0 + r0], y)
            t = reduce('max', y, 'float32')
        store(out1, [p0], t)
"""
NUMBERS = [0, 1, 15, 16, 31, 40, -1, -3, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)]


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le"])
@pytest.mark.parametrize("operands", ["i, k", "k, i"])
def test_places_are_compared_by_lane(harness_any, op: str, operands: str) -> None:
    for n in (1, 16, 41, 200):
        for offset in (0, -20, 1 << 40):
            text = COMPARED.format(n=n, offset=offset, op=op, operands=operands)
            assert "lane_of" in kernel_text(parse_kernel(text))
            harness_any.add(
                text,
                torch.tensor(NUMBERS),
                torch.rand(12 * n),
                torch.zeros(12 * n),
                torch.zeros(12),
            )
    harness_any.compare()


LOG_SOFTMAX = """
@kernel(device='cpu', vector='r0')
def gradient(in0: In('float32', 50*{n}), in1: In('float32', 50), out0: Out('float32', 50*{n}), out1: Out('float32', 50*{n})):
    for p0 in range(50):
        for r0 in reduce({n}):
            x = load(in0, [{n}*p0 + r0], 'float32')
            m = reduce('max', x, 'float32')
        for r0 in reduce({n}):
            x1 = load(in0, [{n}*p0 + r0], 'float32')
            c1 = sub(x1, {shift})
            e1 = exp(c1)
            s = reduce('sum', e1, 'float32')
        l = log(s)
        g = load(in1, [p0], 'float32')
        for r0 in reduce({n}):
            x2 = load(in0, [{n}*p0 + r0], 'float32')
            c2 = sub(x2, {shift})
            d2 = sub(c2, l)
            e2 = exp(d2)
            y = mul(e2, g)
            store(out0, [{n}*p0 + r0], d2)
            store(out1, [{n}*p0 + r0], y)
"""


def test_exponentials_of_log_softmax_are_kept(harness_any) -> None:
    for n in (1, 16, 100):
        x = torch.randn(50, n) * 10
        x[0], x[1, 0], x[2], x[3, -1], x[4] = 3e38, -torch.inf, -torch.inf, torch.inf, -3e38
        x[5] = torch.linspace(-200, 200, n)
        text = LOG_SOFTMAX.format(n=n, shift="m")
        assert kernel_text(parse_kernel(text)).count("exp_of") == 1
        harness_any.add(
            text,
            x.flatten(),
            torch.randn(50),
            torch.zeros(50 * n),
            torch.zeros(50 * n),
            rtol=1e-4,
            atol=1e-6,
        )
    harness_any.compare()


def test_exponentials_that_may_be_infinite_stay(harness) -> None:
    text = LOG_SOFTMAX.format(n=40, shift="g").replace(
        "        g = load(in1, [p0], 'float32')\n", ""
    )
    text = text.replace(
        "for p0 in range(50):\n", "for p0 in range(50):\n        g = load(in1, [p0], 'float32')\n"
    )
    assert kernel_text(parse_kernel(text)).count("exp_of") == 2
