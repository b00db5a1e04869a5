"""Foreach ops whose lists share memory write to one tensor after the other, as in eager mode."""

from __future__ import annotations

import torch
from aotgrad import Unsupported, aot_function, run_eager, trace_functional
from hypothesis import given, reject
from hypothesis import strategies as st

SIZE = 3
places = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 2)), min_size=1, max_size=3)


@given(places, st.lists(st.integers(0, 8), min_size=3, max_size=3), st.booleans())
def test_views_of_one_tensor(targets, others, is_one_storage):
    def program(x, y):
        written = [x[start : start + SIZE * step : step] for start, step in targets]
        read = [
            (x if is_one_storage else y)[start : start + SIZE] for start in others[: len(written)]
        ]
        torch._foreach_mul_(written, read)
        torch._foreach_add_(written, 1)

    inputs = [[torch.arange(16.0), torch.arange(16.0) / 4] for _ in range(2)]
    try:
        program(*inputs[0])
    except RuntimeError:  # a tensor meets a part of its own operand
        reject()
    try:
        aot_function(program, forward_compiler=run_eager)(*inputs[1])
    except Unsupported:  # eager mode computes with what it has just written
        reject()
    torch.testing.assert_close(inputs[1], inputs[0])


def test_tensors_side_by_side_in_one_buffer_are_written_by_one_call():
    def program(buffer):
        parts = buffer.split(SIZE)
        torch._foreach_add_(parts[::2], parts[1::2])
        return buffer

    graph = trace_functional(program, [torch.arange(12.0)])
    calls = [node for node in graph.graph.nodes if "foreach" in str(node.target)]
    assert len(calls) == 1
