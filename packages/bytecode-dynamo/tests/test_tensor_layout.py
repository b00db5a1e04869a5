"""The places of a tensor's facts in memory are found by comparing tensors."""

from __future__ import annotations

import ctypes
import random

import pytest
import torch
from bytecode_dynamo.guards import tensor_layout


def _leave_behind(words: list[int], rng: random.Random) -> None:
    """Free blocks as large as tensors, which later tensors find filled with these words."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    blocks = []
    for size in list(range(160, 260, 8)) * 40:
        block = libc.malloc(size)
        values = [rng.choice(words) for _ in range(size // 8)]
        ctypes.memmove(block, b"".join(v.to_bytes(8, "little") for v in values), size)
        blocks.append(block)
    rng.shuffle(blocks)
    for block in blocks:
        libc.free(block)


@pytest.mark.parametrize("seed", range(8))
def test_what_memory_held_before_does_not_mislead(seed: int) -> None:
    rng = random.Random(seed)
    keys = torch._C._dispatch_keys(torch.empty(1)).raw_repr()
    _leave_behind([0, 1, 2, 3, 5, 6, 7, keys, rng.getrandbits(47)], rng)
    assert tensor_layout._find_layout() == tensor_layout.calibrate()
