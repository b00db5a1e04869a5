"""A 1-d convolution makes its input contiguous, whatever its strides; a contiguous one may look
channels-last.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from symshapes import FakeTensorMode


def made(*sizes: int, last: bool) -> torch.Tensor:
    """With its channels before its places in memory, or after them."""
    return torch.randn(sizes[0], sizes[2], sizes[1]).transpose(1, 2) if last else torch.randn(sizes)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("last", itertools.product([False, True], repeat=2))
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (8, 1), (8, 2), (8, 8)])
def test_strides_are_eagers(
    kernel: int, last: tuple[bool, bool], transposed: bool, channels: int, groups: int
) -> None:
    x = made(2, channels, 12, last=last[0])
    weight = made(
        *((channels, 16 // groups) if transposed else (16, channels // groups)),
        kernel,
        last=last[1],
    )
    settings = (None, [1], [kernel // 2], [1], transposed, [0], groups)
    mode = FakeTensorMode()
    fakes = mode.from_real(x), mode.from_real(weight)
    with mode:
        fake = torch.ops.aten.convolution(*fakes, *settings)
    result = torch.ops.aten.convolution(x, weight, *settings)
    assert (tuple(fake.shape), tuple(fake.stride())) == (tuple(result.shape), result.stride())
