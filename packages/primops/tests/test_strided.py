"""Operators that address memory by strides of their own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from primops import ContractError, DecompositionError, TensorMeta, decompose, decomposition_report
from primops.testing import check_against_eager, trace

X = torch.arange(48.0).reshape(2, 3, 8)
VIEWS = {
    "whole": lambda x: x * 2,
    "permuted copy": lambda x: (x * 2).permute(2, 0, 1).contiguous(),
    "permuted": lambda x: (x * 2).permute(1, 2, 0),
    "later rows": lambda x: (x * 2)[1:],
    "every other": lambda x: (x * 2)[:, :, ::2],
    "expanded": lambda x: x.sum(1, keepdim=True).expand(2, 3, 8),
}


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(sorted(VIEWS)),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 2, 3, 6, 12, 24])), max_size=3),
    st.none() | st.integers(0, 5),
)
def test_memory_of_a_value_is_read_by_prims(view, dims, offset):
    size, stride = [n for n, _ in dims], [step for _, step in dims]
    owner = 16 if view == "expanded" else 48
    start = VIEWS[view](X).storage_offset() if offset is None else offset
    if start + sum((n - 1) * step for n, step in dims) >= owner and 0 not in size:
        return
    gm = check_against_eager(lambda x: VIEWS[view](x).as_strided(size, stride, offset), X)
    assert not decomposition_report(gm).externs


@pytest.mark.parametrize(
    "size, stride", [((2, 3), (10, 2)), ((8, 3, 2), (1, 8, 24)), ((0, 3), (1, 1)), ((), ())]
)
def test_memory_of_a_value_is_written_by_prims(size, stride):
    def write(x, src):
        return torch.as_strided_scatter(x.permute(2, 0, 1) * 3, src, size, stride)

    gm = check_against_eager(write, X, torch.randn(size))
    assert not decomposition_report(gm).externs


def test_an_absolute_offset_into_an_input_stays_a_call():
    """The caller may pass a tensor that begins elsewhere in its storage."""
    gm = check_against_eager(lambda x: x[1].as_strided((2, 2), (1, 1), 3), X)
    assert decomposition_report(gm).externs == {"aten.as_strided.default": 1}
    (result,) = gm(torch.arange(50.0)[2:].view(2, 3, 8))
    assert result.tolist() == [[3, 4], [4, 5]]


def test_complex_values_stay_calls():
    def f(x):
        return torch.view_as_real(
            (torch.view_as_complex(x.view(24, 2)) * 2)[3:].as_strided((3, 2), (4, 1))
        )

    assert "aten.as_strided.default" in decomposition_report(check_against_eager(f, X)).externs


def test_what_no_call_can_say_is_an_error():
    with pytest.raises(
        DecompositionError,
        match="C2.3: aten.as_strided_scatter.default begins 3 elements into memory",
    ):
        decompose(
            trace(
                lambda x: torch.as_strided_scatter((x * 2)[:, :, ::2], x[0, 0, :2], (2,), (1,), 3),
                X,
            )
        )
    gm = trace(lambda x: (x * 2)[1].as_strided((2, 2), (1, 1)), X)
    for node in gm.graph.nodes:
        if node.op == "call_function":
            node.meta["val"] = TensorMeta.from_tensor(node.meta["val"])
    with pytest.raises(
        ContractError, match=r"C2.3: where aten.as_strided.default begins in memory is unknown"
    ):
        decompose(gm)
