"""``min`` and ``max`` give one of their arguments, of its own type; ``reversed`` of a tensor is a
tensor.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

NAN = float("nan")
CALLS = {
    "mixed": lambda x, a: (min(a, 2), max(a, 2), min(2.0, a), max(2.5, a), min(a, 2, 3.5)),
    "order": lambda x, a: (min(a, 2.0), max(2.0, a), min(2, a), max(2, a)),
    "range": lambda x, a: list(range(int(max(1, min(3, a))))),
    "nested": lambda x, a: (max(1, min(3, a)), min([a, 2, 5]), max([], default=a)),
    "operands": lambda x, a: (x * min(a, 2), x.int() * max(a, 2)),
    "sizes": lambda x, a: (min(x.shape[0], a), max(x.shape[0], a)),
    "no number": lambda x, a: (len(repr(min(NAN, a))), min(a, NAN)),
    "booleans": lambda x, a: (min(a, True), max(True, a)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "values", [(1.0, 2.0, 3.5, 0.5, 7.0), (1, 2, 3, 5, 0), (1, 2, 3.5, 5, 2.0, 3)]
)
def test_extremes_keep_their_type(name, dynamic, values):
    torchstrata.reset()
    function, x = CALLS[name], torch.tensor([1.0, 2.0])
    compiled = torchstrata.compile(
        lambda x, a: (x + 1, function(x, a)), dynamic=dynamic, fullgraph=True
    )
    for a in values:
        expected, result = function(x, a), compiled(x, a)[1]
        torch.testing.assert_close(result, expected)
        assert list(map(type, result)) == list(map(type, expected))


@pytest.mark.parametrize("shape", [(3, 2), (3,), ()])
def test_reversed_tensors(shape):
    torchstrata.reset()
    x = torch.rand(shape)
    torch.testing.assert_close(
        torchstrata.compile(lambda x: reversed(x) * 2, fullgraph=True)(x), reversed(x) * 2
    )
