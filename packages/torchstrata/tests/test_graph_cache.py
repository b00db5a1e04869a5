"""The text by which a graph is found again."""

from __future__ import annotations

import pytest
import torch
from loopir.cache.program_cache import Undescribed
from torchstrata.graph_cache import _argument_text


def test_arguments():
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    text = _argument_text(((node, 2), {"dim": [1, node]}, slice(None, node), ...))
    assert text == "tuple(tuple(%x, 2), {'dim': list(1, %x)}, slicetuple(None, %x, None), ...)"


@pytest.mark.parametrize("function", [len, int, test_arguments])
def test_code_is_not_described_wherever_it_stands(function):
    for arguments in (
        function,
        (function,),
        [1, function],
        {"key": function},
        {"key": (function,)},
    ):
        with pytest.raises(Undescribed):
            _argument_text(arguments)
