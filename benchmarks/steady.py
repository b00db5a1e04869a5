"""Steady-state time of the integration models, eager, ours and torch.compile in turns."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import torchstrata

from benchmarks.measure import alternate
from integration_tests.models.zoo import ZOO, Entry


def _step(call: Any, inputs: tuple[Any, ...]) -> None:
    call(*inputs).sum().backward()


def compare(entry: Entry, training: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = entry.build().train(training)
    inputs = entry.inputs(16)
    calls = {
        "eager": model,
        "ours": torchstrata.compile(copy.deepcopy(model)),
        "torch.compile": torch.compile(copy.deepcopy(model)),
    }
    with torch.set_grad_enabled(training):
        timed = {
            name: functools.partial(_step, call, inputs)
            if training
            else functools.partial(call, *inputs)
            for name, call in calls.items()
        }
        result = alternate(timed, rounds=15, seconds=0.1)
    return {
        f"{name} over eager": round(result["eager"] / result[name], 2)
        for name in ("ours", "torch.compile")
    }


def _case(entry: Entry, training: bool):
    def run() -> dict[str, Any]:
        return compare(entry, training)

    run.__name__ = f"{entry.name}_{'training' if training else 'inference'}"
    return run


CASES = [_case(entry, training) for entry in ZOO for training in (False, True)]
