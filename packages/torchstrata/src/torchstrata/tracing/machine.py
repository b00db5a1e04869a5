"""The limits of the machine that kernels are compared with, measured in a few milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch

_BYTES = 64 << 20
_SIZE = {"cpu": 768, "cuda": 4096}


@cache
def limits() -> dict[str, float]:
    """``bandwidth``: bytes per second of a copy, reads and writes added. ``rate``: float32
    operations per second of a matrix product. Of the GPU if there is one.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.no_grad():
        source = torch.empty(_BYTES // 4, dtype=torch.float32, device=device).fill_(1.0)
        target = torch.empty_like(source)
        factor = torch.full((_SIZE[device],) * 2, 0.5, device=device)
        copying = _fastest(lambda: target.copy_(source), device)
        product = _fastest(lambda: factor @ factor, device)
    return {"bandwidth": 2 * _BYTES / copying, "rate": 2 * _SIZE[device] ** 3 / product}


def _fastest(run: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of a few runs."""
    best = float("inf")
    for _ in range(4):
        started = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best
