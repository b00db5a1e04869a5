"""Steps of ``torch.optim`` over many parameters: eager, ours and torch.compile in turns; seconds of
the first two calls.

usage: python -m benchmarks.optimizers [NAME...] [--parameters N...] [--size N] [--capturable]
[--alone] [--device cpu|cuda]

``ms``: our step; the others' columns are how many times longer theirs takes. ``error``: the largest
difference from eager's parameters after five steps, over the largest parameter. ``--capturable``:
the steps' numbers are on the device, for optimizers that can. Nothing is written.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torchstrata

from benchmarks.measure import alternate

Step = Callable[[], object]
CAPTURABLE = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "Adadelta", "RMSprop", "Rprop"}
OPTIONS = {"SGD": {"momentum": 0.9}, "Muon": {}}
OTHERS = ("SGD", "Adagrad", "Adafactor", "Muon")
SHOWN = ("optimizer", "parameters", "ms", "eager", "tc", "error", "cold_s", "cold_tc_s", "counts")


def _parameters(count: int, size: int, device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(size, size + 8 * (i % 4)) for i in range(count)]
    parameters = [torch.randn(shape, device=device).requires_grad_() for shape in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    return parameters


def _optimizer(
    name: str, parameters: Sequence[torch.Tensor], capturable: bool
) -> torch.optim.Optimizer:
    options: dict[str, Any] = dict(OPTIONS.get(name, {}))
    if name in CAPTURABLE and capturable:
        options["capturable"] = True
    return getattr(torch.optim, name)(parameters, **options)


def _synchronized(step: Step, device: str) -> Step:
    def run() -> None:
        step()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def _first_calls(step: Step) -> float:
    """Seconds of two calls: the first one makes the state, which the second one finds."""
    started = time.perf_counter()
    for _ in range(2):
        step()
    return time.perf_counter() - started


def row(
    name: str, count: int, size: int, device: str, capturable: bool, alone: bool
) -> dict[str, Any]:
    """One optimizer over so many parameters."""
    torchstrata.reset()
    compilers: dict[str, Callable[[Step], Step]] = {
        "eager": lambda step: step,
        "ours": torchstrata.compile,
    }
    if not alone:
        compilers["tc"] = torch.compile
    parameters = {key: _parameters(count, size, device) for key in compilers}
    steps, cold = {}, {}
    for key, wrap in compilers.items():
        optimizer = _optimizer(name, parameters[key], capturable)
        steps[key] = _synchronized(wrap(lambda optimizer=optimizer: optimizer.step()), device)
        cold[key] = _first_calls(steps[key])
        for _ in range(3):
            steps[key]()
        if key == "ours":
            counts = copy.copy(torchstrata.counters)
    pairs = list(zip(parameters["ours"], parameters["eager"], strict=True))
    error = max((a - b).abs().max().item() for a, b in pairs) / max(
        b.abs().max().item() for _, b in pairs
    )
    times = alternate(steps, rounds=7, seconds=0.05)
    shown = ("graphs", "graph_breaks", "fallbacks", "generated_kernels", "extern_calls")
    result: dict[str, Any] = {
        "optimizer": name,
        "parameters": count,
        "ms": round(times["ours"] * 1e3, 3),
    }
    result |= {key: round(times[key] / times["ours"], 3) for key in ("eager", "tc") if key in times}
    result |= {"error": f"{error:.1g}", "cold_s": round(cold["ours"], 1)}
    if not alone:
        result["cold_tc_s"] = round(cold["tc"], 1)
    return result | {"counts": "/".join(str(counts[key]) for key in shown)}


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each optimizer and number of parameters."""
    for name in options.optimizer or sorted((*CAPTURABLE, *OTHERS)):
        for count in options.parameters:
            yield row(name, count, options.size, options.device, options.capturable, options.alone)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("optimizer", nargs="*")
    parser.add_argument("--parameters", nargs="+", type=int, default=[1, 10, 150, 1000])
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--capturable", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    print(*SHOWN)
    for each in rows(options):
        print(*(each.get(name, "-") for name in SHOWN), flush=True)


if __name__ == "__main__":
    main()
