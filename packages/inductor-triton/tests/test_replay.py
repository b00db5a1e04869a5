"""What a recording decides without a device: when its results may be handed out as copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from inductor_triton.replay import MOST_COPIES, Recording, Result, _metadata


def recording(*tensors: torch.Tensor) -> Recording:
    graph: Any = None
    results = [Result(storage=tensor.untyped_storage(), metadata=_metadata(tensor)) for tensor in tensors]
    return Recording(graph, (), (), results)


SHARED = torch.randn(8)


@pytest.mark.parametrize(
    ("tensors", "cheap"),
    [
        ([torch.randn(4, 3)], True),
        ([torch.randn(4, 3).t()], True),
        ([torch.randn(3).expand(4, 3)], False),
        ([torch.randn(8, 3)[::2]], False),
        ([torch.randn(1)] * (MOST_COPIES + 1), False),
    ],
    ids=["dense", "transposed", "repeated", "gaps", "many"],
)
def test_copies(tensors: list[torch.Tensor], cheap: bool):
    assert recording(*tensors).copies_are_cheap() is cheap


def test_results_that_share_memory_are_not_copied():
    storage, metadata = SHARED.untyped_storage(), _metadata(SHARED)
    graph: Any = None
    shared = Recording(graph, (), (), [Result(storage=storage, metadata=metadata), Result(storage=storage, metadata=metadata)])
    assert not shared.copies_are_cheap()


def test_a_recording_that_hands_out_copies_is_always_free():
    made = recording(torch.randn(4))
    made.hands_out_copies = True
    assert made.free()
