"""The places of a tensor's facts in memory are found by comparing tensors."""

from __future__ import annotations

from typing import Any

import pytest
from bytecode_dynamo.guards import tensor_layout


@pytest.mark.parametrize("failures", [1, tensor_layout.ATTEMPTS - 1])
def test_a_chance_difference_is_tried_again(monkeypatch: Any, failures: int) -> None:
    left, find = [None] * failures, tensor_layout._find_layout

    def unlucky() -> tensor_layout.TensorLayout:
        if left:
            left.pop()
            raise tensor_layout.LayoutError("two places differ")
        return find()

    monkeypatch.setattr(tensor_layout, "_find_layout", unlucky)
    assert tensor_layout.calibrate.__wrapped__() == tensor_layout.calibrate()
