"""A long-lived process: calls, recompiles, models that come and go; what it holds on to.

usage: python -m benchmarks.soak [--calls 10000] [--recompiles 1000] [--models 300] [--device cuda]

Each phase prints ten samples of resident and CUDA memory, open files, and entries of ``linecache``
and of Python's modules, and what was added from the middle of the phase to its end.
"""

from __future__ import annotations

import argparse
import gc
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torchstrata
from torch import nn

SAMPLES = 10


def sample() -> dict[str, float]:
    """What the process holds now: megabytes and counts."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    cuda = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0
    return {
        "resident MB": round(pages * 4096 / 2**20, 1),
        "CUDA MB": round(cuda / 2**20, 1),
        "open files": len(list(Path("/proc/self/fd").iterdir())),
        "lines": len(linecache.cache),
        "modules": len(sys.modules),
        "objects": len(gc.get_objects()),
    }


def model(width: int, device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, 8)).to(device)


def calls(device: str) -> Iterator[None]:
    """A training step of one model, again and again."""
    net = model(16, device)
    compiled, x = torchstrata.compile(net), torch.randn(4, 8, device=device)
    while True:
        compiled(x).sum().backward()
        net.zero_grad()
        yield


def recompiles(device: str) -> Iterator[None]:
    """A function that meets a new constant at every call, until the limit and from a new cache."""
    x, number = torch.randn(4, 8, device=device), 0
    while True:
        compiled = torchstrata.compile(lambda x, name: x * len(name) + 1)
        for _ in range(8):
            number += 1
            compiled(x, str(number))
            yield


def models(device: str) -> Iterator[None]:
    """A model that is compiled, called and dropped."""
    number = 0
    while True:
        number += 1
        net = model(8 + number % 16, device)
        torchstrata.compile(net)(torch.randn(4, 8, device=device)).sum().backward()
        del net
        yield


def run(phase: Callable[[str], Iterator[None]], count: int, device: str) -> dict[str, Any]:
    """Prints samples of a phase; the growth from its middle to its end."""
    steps, samples = phase(device), []
    for number in range(count):
        next(steps)
        if (number + 1) % max(1, count // SAMPLES) == 0:
            samples.append(sample())
            print(phase.__name__, number + 1, samples[-1], flush=True)
    middle, end = samples[len(samples) // 2], samples[-1]
    return {key: round(end[key] - middle[key], 1) for key in end}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--recompiles", type=int, default=1_000)
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    for phase in (calls, recompiles, models):
        growth = run(phase, getattr(arguments, phase.__name__), arguments.device)
        print(f"{phase.__name__}: from the middle to the end {growth}", flush=True)


if __name__ == "__main__":
    main()
