"""Several functional graphs in one text."""

import pytest
import torch
from symshapes import ParseError
from symshapes.text.functions import format_functions, parse_functions

TEXT = """\
# symshapes.functions 1
s0 = Size(lower=2, hint=4)

def score(score: f32[1], table: f32[s0], k: i32[1]):
    index: f32[1] = ops.aten.index.Tensor(table, [k])
    add: f32[1] = ops.aten.add.Tensor(score, index)
    return (add,)

def mask(k: i32[1]):
    lt: bool[1] = ops.aten.lt.Scalar(k, 3)
    return (lt,)
"""


def test_functions_are_read_and_written():
    functions = parse_functions(TEXT)
    assert list(functions) == ["score", "mask"]
    assert format_functions(functions) == TEXT
    (found,) = functions["score"](torch.ones(3), torch.arange(5.0), torch.tensor([0, 2, 4]))
    assert found.tolist() == [1, 3, 5]


@pytest.mark.parametrize("text", ["def f(x): return x", "import os", "def f("])
def test_other_texts_are_refused(text):
    with pytest.raises(ParseError):
        parse_functions(text)
