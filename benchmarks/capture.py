"""Capture of whole unmodified models, inference, next to torch.compile in the same process.

Seconds: the first call with the eager backend beyond an eager call, both compilers having forgotten
everything (median of three). Microseconds: a later call whose graph answers with what it gave
before, so that guards and what surrounds the graph are left.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torchstrata

from benchmarks.measure import alternate
from integration_tests.models import hf, vision

ROUNDS = 3


def answers_again(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A backend whose graphs are run once."""
    results: list[Any] = []

    def call(*args: Any) -> Any:
        if not results:
            results.append(gm.forward(*args))
        return results[0]

    return call


def ours(model: torch.nn.Module, backend: Any) -> Callable[..., Any]:
    """The model through this repository's capture, nothing remembered."""
    torchstrata.reset()
    return torchstrata.compile(model, backend=backend)


def incumbent(model: torch.nn.Module, backend: Any) -> Callable[..., Any]:
    """The model through torch.compile, nothing remembered."""
    torch._dynamo.reset()
    return torch.compile(model, backend=backend)


COMPILERS = {"ours": ours, "torch.compile": incumbent}


def seconds(call: Callable[[], Any]) -> float:
    """Wall time of one call."""
    gc.collect()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def capture(entry: Any) -> dict[str, float]:
    """One row of the table."""
    torch.manual_seed(0)
    model = entry.build().eval()
    inputs = entry.example(model, 2, 12)
    row: dict[str, float] = {}
    with torch.no_grad():
        eager = min(seconds(lambda: model(**inputs)) for _ in range(ROUNDS))
        for label, compiler in COMPILERS.items():
            taken = [
                seconds(partial(compiler(model, "eager"), **inputs)) - eager for _ in range(ROUNDS)
            ]
            row[f"{label} s"] = round(statistics.median(taken), 3)
        later = {
            label: partial(compiler(model, answers_again), **inputs)
            for label, compiler in COMPILERS.items()
        }
        row |= {
            f"{label} us": round(1e6 * value)
            for label, value in alternate(later, rounds=10).items()
        }
    row["ratio"] = round(row["ours s"] / row["torch.compile s"], 2)
    return row


def _case(entry: Any) -> Callable[[], dict[str, float]]:
    def run() -> dict[str, float]:
        return capture(entry)

    run.__name__ = entry.name
    return run


CASES = [_case(entry) for entry in (*hf.NAMED, *vision.NAMED)]
