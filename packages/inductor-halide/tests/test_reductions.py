"""What the refused hazards leave: a kernel that reads, then overwrites, and its schedules."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("halide")

from loopir import evaluate_kernel, parse_kernel

CENTRED = """
@kernel(device='cpu', vector='r0')
def k(inout0: InOut('float32', 9*s0), out0: Out('float32', 9), s0: Size(hint=50)):
    for x0 in range(9):
        for r0 in reduce(s0):
            v0 = load(inout0, [s0*x0 + r0], 'float32')
            v1 = reduce('sum', v0, 'float32')
            v2 = reduce('argmax', v0, 'int64')
        v3 = cast(v2, 'float32')
        store(out0, [x0], v3)
        for r0 in reduce(s0):
            v4 = load(inout0, [s0*x0 + r0], 'float32')
            v5 = sub(v4, v1)
            store(inout0, [s0*x0 + r0], v5)
"""


@pytest.mark.parametrize("schedule", ["simple", "Mullapudi2016", "Li2018"])
@pytest.mark.parametrize("threads", [1, 2])
def test_centred_rows(schedule, threads, build):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        launch = build(CENTRED, schedule)
    finally:
        torch.set_num_threads(before)
    for size in (1, 5, 64, 301):
        x = torch.randn(9 * size)
        expected, actual = [x.clone(), torch.empty(9)], [x.clone(), torch.empty(9)]
        evaluate_kernel(parse_kernel(CENTRED), expected, (size,))
        launch(*actual, size)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)
