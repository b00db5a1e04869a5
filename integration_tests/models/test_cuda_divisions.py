"""Quotients on CUDA devices where the last bit decides: before rounding to integers, comparisons
and positions.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
JUMPS = {
    "floor of a quotient": lambda a, b: torch.floor(a / b),
    "rounded by a number": lambda a, b: torch.round(a / 3 + b / 7),
    "floor division": lambda a, b: a // b,
    "floor division by a number": lambda a, b: a // 3 + b // 0.1,
    "remainder": lambda a, b: (a % b, torch.remainder(a, 3), torch.fmod(b, 0.1)),
    "comparisons": lambda a, b: ((a / b) * b == a, a / 3 <= b / 3, a / b >= 1.0),
    "integers": lambda a, b: ((a / b).int(), (a / 10).long(), (1 / b).to(torch.int16)),
    "positions": lambda a, b: ((a / b).argmax(-1), (b / 49).argmin(0), (a / 3).sort(-1).indices),
    "buckets": lambda a, b: torch.bucketize(a / 5, torch.linspace(-9, 9, 19, device=a.device)),
    "statistics": lambda a, b: torch.where(a / b > b / 3, a / b, b).ceil(),
    "a ratio of sums": lambda a, b: torch.floor(a.abs() * 4 / (b.abs() * 2)).sum(-1),
}
NARROW = ("floor of a quotient", "integers", "positions", "buckets", "statistics")
"""Of one rounding ahead of each jump; between others, results of 16 bits stay wider."""
CASES = [(name, dtype) for name in JUMPS for dtype in (torch.float32, torch.float64)]


@pytest.mark.parametrize(("name", "dtype"), CASES + [(name, torch.bfloat16) for name in NARROW])
def test_jumps(name, dtype):
    """The same bits as in eager mode."""
    whole = torch.arange(-4096, 4096, device="cuda").reshape(64, 128)
    a, b = whole.to(dtype), (whole % 251 - 125).to(dtype)
    b[b == 0] = 1
    compiled = torchstrata.compile(JUMPS[name], fullgraph=True)
    found, expected = compiled(a, b), JUMPS[name](a, b)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
