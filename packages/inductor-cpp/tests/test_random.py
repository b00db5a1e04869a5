"""Philox: known answers, and the same numbers from every code path."""

from __future__ import annotations

import pytest
import torch
from loopir import parse_kernel

# Random123's known-answer vector for Philox4x32-10 with zero counter and key.
KNOWN = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]

TEXT = """
@kernel(device='cpu'{vector})
def kernel0(in0: In('int64', 2), out0: Out('float32', {rows}*{n})):
    for p0 in range({rows}):
        for p1 in range({n}):
            seed = load(in0, [0], 'int64')
            offset = load(in0, [1], 'int64')
            i = index_expr({n}*p0 + p1, 'int64')
            c = add(i, offset)
            u = uniform(seed, c)
            store(out0, [{n}*p0 + p1], u)
"""


def text(n: int, rows: int = 1, axis: str | None = "p1") -> str:
    return TEXT.format(n=n, rows=rows, vector=f", vector={axis!r}" if axis else "")


def test_known_answers(harness_any):
    (launch,) = harness_any.build(parse_kernel(text(64)))
    out = torch.zeros(64)
    launch(torch.tensor([0, 0]), out)
    assert out[:4].tolist() == [(word >> 8) * 2.0**-24 for word in KNOWN]


@pytest.mark.parametrize("offset", [0, 1, 4, 1000, (1 << 34) + 8, (1 << 34) + 7])
def test_all_paths_equal_evaluator(harness_any, offset):
    for n, rows in ((1, 1), (64, 2), (100, 3), (257, 2)):
        for axis in ("p1", "p0", None):
            harness_any.add(
                text(n, rows, axis),
                torch.tensor([-(1 << 40) + 12345, offset]),
                torch.zeros(n * rows),
                label=f"{n} {rows} {axis}",
            )
    harness_any.compare()


def test_seed_that_differs_between_lanes(harness):
    kernel = """
@kernel(device='cpu', vector='p0')
def kernel0(in0: In('int64', 50), out0: Out('float32', 50)):
    for p0 in range(50):
        seed = load(in0, [p0], 'int64')
        c = index_expr(p0*3, 'int64')
        u = uniform(seed, c)
        store(out0, [p0], u)
"""
    harness.add(kernel, torch.arange(50) * 7919, torch.zeros(50))
    harness.compare()


def test_numbers_are_uniform(harness):
    (launch,) = harness.build(parse_kernel(text(100_000)))
    out = torch.zeros(100_000)
    launch(torch.tensor([42, 0]), out)
    assert out.min() >= 0 and out.max() < 1
    assert abs(out.mean().item() - 0.5) < 0.005 and abs(out.var().item() - 1 / 12) < 0.002
