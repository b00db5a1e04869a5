"""Numbers of NumPy's beside numbers that change from call to call."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
import torchstrata

OPERATORS = [operator.add, operator.mul, operator.pow, operator.lt, operator.eq, max]


@pytest.mark.parametrize("function", OPERATORS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("made", [np.float64, float], ids=["float64", "float"])
def test_results_are_of_eagers_types(function, made):
    def program(x, number, size):
        first = made(0.5)
        second = np.float64(2)
        return (
            x + 1,
            function(first, number),
            function(second, size),
            function(size, second),
            function(second, x.shape[0]),
        )

    compiled = torchstrata.compile(program, backend="eager")
    for number, size in ((1.5, 2), (2.5, 3), (3.5, 5), (0.5, 9)):
        found, expected = (
            call(torch.ones(size + 1), number, size)[1:] for call in (compiled, program)
        )
        assert [*map(type, found)] == [*map(type, expected)]
        assert found == expected
