"""What each optimisation is worth: the speed-up over eager with all of them, and without each.

usage: python -m benchmarks.ablation [MODEL...] [--device cpu|cuda] [--modes inference training]
[--dtype fp32] [--without SWITCH...] [--rounds N] [--jobs N] [--save]

Models are those of benchmarks.cpu_models, or of benchmarks.gpu_models, which are bfloat16. Every
model runs in a process of its own, where all variants are measured in turns; ``--jobs``: models
that compile at once, measuring is alone. The speed-up of a variant is the geometric mean over the
models, its loss what is lost of that with all on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from statistics import geometric_mean
from typing import Any

import torch

from benchmarks.cpu_models import DTYPES
from benchmarks.measure import (
    alternate,
    awaited_clock,
    environment,
    save_rows,
    single_thread_clock,
)
from benchmarks.turns import TURN, turn

Step = Callable[[], object]
ALL = "all"
WARM_STEPS = 4
SWITCHES: dict[str, dict[str, Any]] = {
    "fusion": {"fusion": False},
    "inlining": {"inlining": False},
    "patterns": {"patterns": False},
    "loop and layout order": {"loop_order": False, "layouts": False},
    "templates": {"templates": False},
    "vectorisation": {"vectorisation": False},
    "split reductions": {"split_reductions": False},
    "memory reuse": {"memory_reuse": False},
    "min-cut": {"partition": "default"},
    "freezing": {"freeze": False},
    "cuda graphs": {"cuda_graphs": False},
}
"""The options that turn each optimisation off."""
_ALL_ON: dict[str, Any] = {"freeze": True, "fallback": "error"}
"""What is off by default, and belongs to the whole."""


def variants(device: str, training: bool, without: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The options of all on, and of each switch that matters on a device and in a mode."""
    idle = {"cuda graphs"} if device == "cpu" else set()
    idle |= {"freezing"} if training else {"min-cut"}
    chosen = [name for name in without or SWITCHES if name not in idle]
    return {ALL: _ALL_ON, **{name: {**_ALL_ON, **SWITCHES[name]} for name in chosen}}


def models_of(device: str) -> Sequence[str]:
    """The names of a device's models."""
    from benchmarks import cpu_models, gpu_models

    return [*(gpu_models if device == "cuda" else cpu_models).MODELS]


def step_of(device: str, name: str, dtype: str, training: bool, options: Any) -> Step:
    """A step of a model that is made and compiled anew; eager without ``options``."""
    import torchstrata

    from benchmarks import cpu_models, gpu_models

    if device == "cuda":
        net, named = gpu_models.build(name, training)
        call = net if options is None else torchstrata.compile(net, options=options)
        return lambda: gpu_models.step_of(call, net, named, training)
    model, inputs = cpu_models.build(name, DTYPES[dtype], training)
    call = model if options is None else torchstrata.compile(model, options=options)
    return lambda: cpu_models.one_step(call, inputs, training)


def measure_model(
    device: str, name: str, dtype: str, mode: str, without: Sequence[str], rounds: int
) -> dict[str, float]:
    """Speed-ups over eager, by variant; they share one process and take turns."""
    training = mode == "training"
    chosen = {"eager": None, **variants(device, training, without)}
    with torch.set_grad_enabled(training):
        steps = {v: step_of(device, name, dtype, training, o) for v, o in chosen.items()}
        with turn(exclusive=False):
            for step in steps.values():
                for _ in range(WARM_STEPS):  # a CUDA graph is recorded at a later step
                    step()
        clock = awaited_clock if device == "cuda" else single_thread_clock()
        with turn(exclusive=True):
            seconds = alternate(steps, rounds=rounds, seconds=0.05, clock=clock)
    return {name: seconds["eager"] / value for name, value in seconds.items() if name != "eager"}


def table(speed_ups: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """A row per variant from the speed-ups by model and variant, the largest loss first after all
    on. ``loss`` is the share of the speed-up that is gone.
    """
    means = {
        variant: geometric_mean([row[variant] for row in speed_ups.values()])
        for variant in next(iter(speed_ups.values()))
    }
    rows = [
        {
            "optimisations": ALL if variant == ALL else f"without {variant}",
            "speed-up over eager": round(mean, 3),
            "loss": f"{100 * (1 - mean / means[ALL]):.1f} %",
            "models": len(speed_ups),
        }
        for variant, mean in sorted(means.items(), key=lambda item: (item[0] != ALL, item[1]))
    ]
    return rows


def in_process(lock: str, arguments: list[str]) -> dict[str, float] | str:
    """A model in a fresh interpreter: its speed-ups, or what failed."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ablation", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, TURN: lock},
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["?"])[-1][:200]
    return json.loads(done.stdout.strip().splitlines()[-1])


def each_model(
    models: Sequence[str], arguments: list[str], jobs: int
) -> Iterator[tuple[str, dict[str, float] | str]]:
    """What ``in_process`` gives for each model, as they are done."""
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(jobs) as pool:
        lock = f"{directory}/lock"
        tasks = {pool.submit(in_process, lock, [name, *arguments]): name for name in models}
        for task in as_completed(tasks):
            yield tasks[task], task.result()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="without any, all")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--modes", nargs="*", default=["inference"], choices=MODES)
    parser.add_argument("--dtype", default="fp32", choices=DTYPES)
    parser.add_argument("--without", nargs="*", default=[], choices=SWITCHES)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--save", action="store_true", help="write results/ablation.json")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        (model,), (mode,) = chosen.models, chosen.modes
        found = measure_model(
            chosen.device, model, chosen.dtype, mode, chosen.without, chosen.rounds
        )
        print(json.dumps(found))
        return
    common = ["--device", chosen.device, "--rounds", str(chosen.rounds), "--measure"]
    dtype = "bf16" if chosen.device == "cuda" else chosen.dtype
    common += ["--dtype", dtype]
    common += ["--without", *chosen.without] if chosen.without else []
    for mode in chosen.modes:
        speed_ups, about = {}, {"device": chosen.device, "mode": mode, "dtype": dtype}
        models = chosen.models or models_of(chosen.device)
        for model, found in each_model(models, ["--modes", mode, *common], chosen.jobs):
            if isinstance(found, str):
                print(f"{mode} {model}: {found}", file=sys.stderr, flush=True)
                continue
            speed_ups[model] = found
            if chosen.save:  # a run that ends early leaves the models so far
                rows = [{**about, **row} for row in table(speed_ups)]
                save_rows("ablation", environment(), rows, (*about, "optimisations"))
        print_table([{**about, **row} for row in table(speed_ups or EMPTY)])


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as a table of Markdown."""
    for row in (list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)):
        print("|", " | ".join(map(str, row)), "|", flush=True)


MODES = ("inference", "training")
EMPTY = {"no model": {ALL: float("nan")}}

if __name__ == "__main__":
    main()
