"""Dtype and shape rules against torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from primops import PrimError
from primops.promotion import result_dtype
from primops.shapes import broadcast_shapes, infer_shape, wrap_dim, wrap_dims

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64]
DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
TENSORS = st.builds(
    lambda d, s: torch.ones(s, dtype=d), st.sampled_from(DTYPES), st.sampled_from([(), (2,)])
)
NUMBERS = st.sampled_from([True, 3, 2.5, 1 + 2j])


@given(st.one_of(TENSORS, NUMBERS), st.one_of(TENSORS, NUMBERS))
def test_result_dtype_is_torchs(a, b):
    if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
        a = torch.tensor(a)
    assert result_dtype(a, b) == torch.result_type(a, b)


@given(*[st.lists(st.sampled_from([0, 1, 3]), max_size=3)] * 2)
def test_broadcast_is_torchs(a, b):
    try:
        expected = torch.broadcast_shapes(a, b)
    except RuntimeError:
        with pytest.raises(PrimError, match="do not broadcast"):
            broadcast_shapes(a, b)
    else:
        assert broadcast_shapes(a, b) == tuple(expected)


def test_dims_wrap_as_in_torch():
    assert wrap_dim(-1, 3) == 2
    assert wrap_dim(-1, 0) == 0
    assert wrap_dims((-1, 0), 3) == (0, 2)
    assert wrap_dims(None, 2) == wrap_dims([], 2) == (0, 1)
    with pytest.raises(IndexError, match="Dimension out of range"):
        wrap_dim(3, 3)
    with pytest.raises(PrimError, match="twice"):
        wrap_dims((0, -3), 3)


def test_one_size_is_inferred():
    assert infer_shape((2, -1), 12) == (2, 6)
    assert infer_shape((3, 4), 12) == (3, 4)
    with pytest.raises(PrimError, match="only one"):
        infer_shape((-1, -1), 4)
