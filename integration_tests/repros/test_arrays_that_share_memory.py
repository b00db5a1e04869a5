"""Arrays that share memory: each becomes a tensor with a storage of its own, and what one wrote was
not seen through the other.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchstrata


def read_after_write(a, b):
    a += 1
    return b.sum()


def one_element(a, b):
    a[0] = 7
    return a + b


def returned(a, b):
    np.add(a, 1, out=a)
    return a * b[0], b


def both_written(a, b):
    a[0] = 7
    b *= 2
    return a + b


def viewed_before_a_break(a, b):
    torchstrata.graph_break()
    c = a.view()
    c[0] = 9
    np.add(a, 1, out=a)
    return a, c


LAYOUTS = {
    "whole": lambda a: (a, a.view()),
    "second within first": lambda a: (a, a[1:2]),
    "first within second": lambda a: (a[1:2], a),
    "overlapping": lambda a: (a[:3], a[2:]),
    "apart": lambda a: (a[:2], a[3:]),
    "every other": lambda a: (a[::2], a[:3]),
}


def run(program, layout, as_tensors):
    memory = np.arange(5.0)
    args = LAYOUTS[layout](memory)
    if as_tensors:
        args = [torch.from_numpy(arg) for arg in args]
    try:
        found = program(*args)
    except (RuntimeError, ValueError) as error:
        return type(error), memory
    return [np.array(x) for x in (found if isinstance(found, tuple) else (found,))], memory


@pytest.mark.filterwarnings("ignore:a compiled graph runs eagerly")
@pytest.mark.parametrize("as_tensors", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize(
    "program", [read_after_write, one_element, returned, both_written, viewed_before_a_break]
)
def test_writes_are_seen_through_other_arrays(program, as_tensors):
    if as_tensors and program in (returned, viewed_before_a_break):
        program = one_element
    torchstrata.reset()
    compiled = torchstrata.compile(program)
    for layout in LAYOUTS:
        found, expected = (run(f, layout, as_tensors) for f in (compiled, program))
        np.testing.assert_equal(found, expected, err_msg=layout)


@pytest.mark.filterwarnings("ignore:a compiled graph runs eagerly")
def test_a_tensor_and_its_array():
    def program(a, b):
        a[0] = 7
        return (torch.as_tensor(a) + torch.as_tensor(b)).sum()

    for order in (1, -1):
        torchstrata.reset()
        x = torch.arange(4.0)
        found = torchstrata.compile(program)(*(x, x.numpy())[::order])
        assert found == 2 * x.sum() == 26
