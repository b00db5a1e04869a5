"""What a trace costs: processor time of first calls with and without ``torchstrata.trace``.

usage: python -m benchmarks.trace_cost [PROGRAM...] [--rounds N]

A program's first calls are compiled anew in turns in one process, each with an empty cache. Time
is the processor's, of this process and of the C++ compilers that it starts; ``share`` is what the
trace adds to the median without one, ``own share`` the same without the C++ compilers' time. A
trace ends, and is written, within what is measured.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torchstrata

Step = Callable[[], object]
LIMIT = 10.0
"""Percent of the time to compile that a trace may cost."""


def bert() -> Step:
    """A training step of BERT with four layers."""
    from integration_tests.models.vision import import_torchvision

    import_torchvision()
    import transformers

    config = transformers.BertConfig(
        hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512
    )
    torch.manual_seed(0)
    net = transformers.BertForMaskedLM(config)
    tokens = torch.randint(1000, (2, 64))

    def make() -> Callable[[], object]:
        call = torchstrata.compile(net)
        return lambda: call(input_ids=tokens, labels=tokens).loss.backward()

    return lambda: make()()


def breaks(x: torch.Tensor, factor: int) -> torch.Tensor:
    """Three graph breaks, and a compilation for each value of ``factor``."""
    y = x.sin() * factor
    torchstrata.graph_break()
    y = torch.softmax(y @ y, -1)
    torchstrata.graph_break()
    y = y.exp() + factor
    torchstrata.graph_break()
    return y.sum() * factor


def breaks_and_recompiles() -> Step:
    """A function with three breaks that is compiled for six numbers."""

    def run() -> None:
        call = torchstrata.compile(breaks, dynamic=False)
        for factor in range(6):
            call(torch.ones(8, 8), factor)

    return run


def resnet50() -> Step:
    """ResNet-50 in inference."""
    from integration_tests.models.vision import import_torchvision

    import_torchvision()
    import timm

    torch.manual_seed(0)
    net, x = timm.create_model("resnet50").eval(), torch.randn(1, 3, 64, 64)

    def run() -> None:
        with torch.no_grad():
            torchstrata.compile(net)(x)

    return run


PROGRAMS: dict[str, Callable[[], Step]] = {
    "bert": bert,
    "breaks": breaks_and_recompiles,
    "resnet50": resnet50,
}


def processor_seconds() -> tuple[float, float]:
    """What this process, and its children that have ended, used so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time(), used.ru_utime + used.ru_stime


def first_calls(step: Step, traced: bool) -> tuple[float, float]:
    """Seconds of compiling everything anew: of this process alone, and with its children."""
    with tempfile.TemporaryDirectory() as folder:
        cache, trace = Path(folder, "cache"), Path(folder, "trace")
        torchstrata.reset()
        with torchstrata.config.patch(cache_dir=str(cache), verify=False):
            before = processor_seconds()
            with torchstrata.trace(trace) if traced else nullcontext():
                step()
            after = processor_seconds()
    own, children = (end - start for start, end in zip(before, after, strict=True))
    return own, own + children


def measure(name: str, rounds: int) -> dict[str, Any]:
    """The row of a program."""
    step = PROGRAMS[name]()
    first_calls(step, True)  # imports, and what a process does once
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for number in range(rounds):
        for traced in (False, True) if number % 2 else (True, False):
            found[traced].append(first_calls(step, traced))
    (own, whole), (own_traced, whole_traced) = (
        tuple(map(statistics.median, zip(*found[traced], strict=True))) for traced in (False, True)
    )
    return {
        "program": name,
        "seconds": round(whole, 2),
        "traced": round(whole_traced, 2),
        "share": f"{100 * (whole_traced / whole - 1):.1f} %",
        "own seconds": round(own, 2),
        "own traced": round(own_traced, 2),
        "own share": f"{100 * (own_traced / own - 1):.1f} %",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", help=", ".join(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    for name in chosen.programs or PROGRAMS:
        row = measure(name, chosen.rounds)
        print(*(f"{key}: {value}" for key, value in row.items()), sep=", ", flush=True)


if __name__ == "__main__":
    main()
