"""Cold compile of one transformer block with an empty cache, forward and backward, next to
torch.compile.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torchstrata

from integration_tests.models.zoo import GPTBlock


def _first_step(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    started = time.perf_counter()
    call(x).sum().backward()
    return time.perf_counter() - started


def transformer_block() -> dict[str, Any]:
    """Seconds to the end of the first training step; both caches empty, imports and one warm-up
    graph done before.
    """
    x = torch.randn(4, 128, 256, requires_grad=True)
    with (
        tempfile.TemporaryDirectory() as ours_cache,
        tempfile.TemporaryDirectory() as incumbent_cache,
    ):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = incumbent_cache
        torchstrata.compile(lambda x: x + 1, options={"cache_dir": ours_cache})(torch.ones(2))
        ours = _first_step(
            torchstrata.compile(GPTBlock(256, 8), options={"cache_dir": ours_cache}), x
        )
        torch.compile(lambda x: x + 1)(torch.ones(2))
        incumbent = _first_step(torch.compile(GPTBlock(256, 8)), x)
    return {"ours s": round(ours, 2), "torch.compile s": round(incumbent, 2)}


CASES = [transformer_block]
