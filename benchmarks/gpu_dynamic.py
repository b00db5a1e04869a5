"""Models on a CUDA device in bfloat16 with inputs of 20 sizes: eager, ours and torch.compile in
turns.

usage: python -m benchmarks.gpu_dynamic [--alone] [--jobs N] [--timeout S] [NAME[:training]...]

A row per model and mode, each from a process of its own. ``ms``: our milliseconds for one call of
each size, in an order that stays; ``eager`` and ``tc``: how many times longer they take, in their
default modes. ``static``: the worst ratio, over three of the sizes, of our time to that of a
compilation for this size alone. ``error``: our error over eager's, the worst of the sizes.
``compiled``: how often we, and torch.compile, compiled the model. ``recorded``: our CUDA graphs and
their megabytes. ``cold_s``: seconds of the first call of every size. ``--jobs``: processes that
compile at once; measuring waits until nobody does. ``--alone``: not next to torch.compile.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.gpu_models import build, step_of
from benchmarks.measure import counts_of_torch_compile
from benchmarks.processes import spread
from benchmarks.turns import turn

NAMES = (
    "bert",
    "gpt2",
    "llama",
    "t5",
    "bart",
    "distilbert",
    "resnet50",
    "vit_base",
    "convnext_tiny",
)
SIZES, STATIC, WARM, ROUNDS, REPEATS = 20, 3, 5, 7, 20
SHOWN = (
    "model", "mode", "ms", "eager", "tc", "static", "error", "compiled", "recorded", "cold_s",
    "cold_tc_s",
)  # fmt: skip
Inputs = dict[str, torch.Tensor]


def resized(inputs: Inputs) -> list[Inputs]:
    """Parts of the inputs with different batch sizes, and lengths where there are some; the first
    has a batch of one.
    """
    draw = random.Random(0)
    batch, *rest = next(iter(inputs.values())).shape
    found = []
    for number in range(SIZES):
        rows = draw.randint(2, batch) if number else 1
        length = draw.randint(rest[0] // 16, rest[0])
        found.append(
            {
                key: (value[:rows, :length] if value.ndim == 2 else value[:rows]).contiguous()
                for key, value in inputs.items()
            }
        )
    return found


def _seconds(step: Callable[[], object], repeats: int = 1) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def _alternate(steps: dict[str, Callable[[], object]], repeats: int = 1) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(_seconds(step, repeats))
    return {name: statistics.median(values) for name, values in times.items()}


def _values(call: Any, net: nn.Module, inputs: Inputs, training: bool) -> torch.Tensor:
    """The loss or first result; in training, the gradients."""
    result = step_of(call, net, inputs, training)
    if not training:
        return result.double().flatten()
    return torch.cat([p.grad.double().flatten() for p in net.parameters() if p.grad is not None])


def _error(net: nn.Module, ours: Any, sizes: Sequence[Inputs], training: bool) -> float:
    """Our error over eager's, both against float32, at the worst size."""
    net.eval()
    exact_net, eager_net = copy.deepcopy(net).float(), copy.deepcopy(net)
    worst = 0.0
    for inputs in sizes:
        wide = {k: v.float() if v.is_floating_point() else v for k, v in inputs.items()}
        exact = _values(exact_net, exact_net, wide, training)
        eager = _values(eager_net, eager_net, inputs, training)
        found = _values(ours, net, inputs, training)
        unit = (eager - exact).norm().clamp(min=1e-3 * exact.norm())
        worst = max(worst, ((found - exact).norm() / unit).item())
    return worst


def _steps_for_one_size(
    net: nn.Module, ours: Any, sizes: Sequence[Inputs], training: bool
) -> list[dict[str, Callable[[], object]]]:
    """For each size, our call and a call of what is compiled for this size alone."""
    import torchstrata

    found: list[dict[str, Callable[[], object]]] = []
    for inputs in sizes:
        own = copy.deepcopy(net)
        static = torchstrata.compile(own, dynamic=False)
        found.append(
            {
                "ours": functools.partial(step_of, ours, net, inputs, training),
                "static": functools.partial(step_of, static, own, inputs, training),
            }
        )
        for step in found[-1].values():
            _seconds(step, WARM)
    return found


def run(name: str, training: bool, is_alone: bool) -> dict[str, Any]:
    """One row."""
    import inductor_triton
    import torchstrata

    net, whole = build(name, training)
    sizes = resized(whole)
    compilers: dict[str, Callable[[nn.Module], Any]] = {
        "eager": lambda net: net,
        "ours": torchstrata.compile,
    }
    if not is_alone:
        compilers["tc"] = torch.compile
    nets = {key: copy.deepcopy(net) for key in compilers}
    calls = {key: compile(nets[key]) for key, compile in compilers.items()}

    def every_size(key: str) -> None:
        for inputs in sizes:
            step_of(calls[key], nets[key], inputs, training)

    steps = {key: functools.partial(every_size, key) for key in calls}
    cold: dict[str, float] = {}
    compiled: dict[str, object] = {}
    with turn(exclusive=False):
        for key, step in steps.items():
            cold[key] = _seconds(step)
            print(f"{name}: first calls of {key} took {cold[key]:.1f} s", file=sys.stderr)
            _seconds(step, WARM)
            if key == "ours":
                compiled[key] = torchstrata.counters["graphs"]
                counts = dict(inductor_triton.counters)
            if key == "tc":
                compiled[key] = counts_of_torch_compile()
        single = _steps_for_one_size(nets["ours"], calls["ours"], sizes[:STATIC], training)
    with turn(exclusive=True):
        times = _alternate(steps)
        static_times = [_alternate(each, REPEATS) for each in single]
    row: dict[str, Any] = {"ms": round(times["ours"] * 1e3, 2)}
    row |= {key: round(times[key] / times["ours"], 3) for key in ("eager", "tc") if key in times}
    row["static"] = round(max(each["ours"] / each["static"] for each in static_times), 3)
    with turn(exclusive=False):
        row["error"] = round(_error(nets["ours"], calls["ours"], sizes, training), 2)
    row["compiled"] = "/".join(map(str, compiled.values()))
    row["recorded"] = f"{counts.get('recorded', 0)}/{counts.get('bytes', 0) >> 20}"
    row |= {
        f"cold{suffix}_s": round(cold[key], 1)
        for key, suffix in (("ours", ""), ("tc", "_tc"))
        if key in cold
    }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=400)
    parser.add_argument("--row")
    options = parser.parse_args()
    if options.row:
        name, _, mode = options.row.partition(":")
        print(json.dumps(run(name, mode == "training", options.alone)), flush=True)
        return
    print(*SHOWN)
    tasks = [
        ["benchmarks.gpu_dynamic", "--row", name, *(["--alone"] if options.alone else [])]
        for name in options.names
    ]
    for task, found in spread(tasks, options):
        name, _, mode = task[2].partition(":")
        row = {"model": name, "mode": mode or "inference", **found}
        print(*(row.get(key, "-") for key in SHOWN), row.get("failed", ""), flush=True)


if __name__ == "__main__":
    main()
