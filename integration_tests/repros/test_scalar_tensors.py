"""A tensor without dims beside one of 16 bits: eager rounds it to the dtype of the other, except
the second operand of products and quotients on the CPU.
"""

from __future__ import annotations

import operator

import pytest
import torch
import torchstrata

FUNCTIONS = {
    "sum": operator.add,
    "difference": operator.sub,
    "reversed difference": lambda x, s: s - x,
    "product": operator.mul,
    "reversed product": lambda x, s: s * x,
    "quotient": operator.truediv,
    "reversed quotient": lambda x, s: s / x,
    "floor": operator.floordiv,
    "towards zero": lambda x, s: torch.div(x, s, rounding_mode="trunc"),
    "remainder": operator.mod,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "choice": lambda x, s: torch.where(x > 0, x, s),
    "comparison": operator.gt,
    "weight": lambda x, s: torch.lerp(x, x, s),
}


@pytest.mark.parametrize("scalar", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits(name, dtype, scalar):
    x = torch.linspace(-3, 3, 1000).to(dtype)
    for number in (-0.1, 0.7, 3.3):
        s = torch.tensor(number, dtype=scalar)
        found = torchstrata.compile(FUNCTIONS[name], fullgraph=True)(x, s)
        expected = FUNCTIONS[name](x, s)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
