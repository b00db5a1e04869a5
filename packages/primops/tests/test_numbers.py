"""Numbers beside float16 and bfloat16 tensors on the CPU: bitwise eager's."""

from __future__ import annotations

import primops
import pytest
import torch
from primops.testing.trace import trace

OPERATORS = {
    "add": lambda x: x + 0.7,
    "sub": lambda x: x - 0.7,
    "rsub": lambda x: 0.7 - x,
    "mul": lambda x: x * 0.7,
    "div": lambda x: x / 0.7,
    "pow": lambda x: x.abs() ** 0.7,
    "remainder": lambda x: x % 0.7,
    "fmod": lambda x: torch.fmod(x, 0.7),
    "eq": lambda x: x == 0.7,
    "lt": lambda x: x < 0.7,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATORS)
def test_bitwise(name, dtype):
    torch.manual_seed(0)
    x = torch.cat([torch.randn(1000), torch.full((8,), 0.7)]).to(dtype)
    made = primops.decompose(trace(OPERATORS[name], x), numerics="eager")
    (result,) = primops.evaluate(made, [x])
    assert torch.equal(result, OPERATORS[name](x))
