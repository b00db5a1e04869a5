"""A 1-d convolution makes its input contiguous, whatever its strides; a contiguous one may look channels-last."""

from __future__ import annotations

import pytest
import torch
from symshapes import FakeTensorMode


@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("permuted", [False, True])
def test_strides_are_eagers(groups: int, kernel: int, permuted: bool) -> None:
    x = torch.randn(2, 12, 8).transpose(1, 2) if permuted else torch.randn(2, 8, 12)
    weight = torch.randn(16, 8 // groups, kernel)
    settings = (None, [1], [kernel // 2], [1], False, [0], groups)
    mode = FakeTensorMode()
    fakes = mode.from_real(x), mode.from_real(weight)
    with mode:
        fake = torch.ops.aten.convolution(*fakes, *settings)
    assert tuple(fake.stride()) == torch.ops.aten.convolution(x, weight, *settings).stride()
