"""Seconds to compile by size of the program: families of 100 to 10,000 ATen calls, each stage apart,
with the exponent of the growth.

usage: python -m benchmarks.scaling [FAMILY...] [--sizes 100 300 1000 3000 10000] [--stages]
[--build] [--blocks]

With ``--blocks``: a transformer of 2, 12 and 48 equal layers instead, by stage, with the sum of the
stages that layers go through once, from decomposition to code generation, and its ratio to that of
2 layers.

Compiled cold, in this process, on the CPU. Seconds are processor time of this process, without the
C++ compiler, which runs only with ``--build``: its input is counted in KiB, its seconds are wall
time. The exponent is the slope of log(seconds) over log(calls) by least squares, from 300 calls up;
1 is linear. It tells little of a stage that takes milliseconds.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import bytecode_dynamo
import torch
import torchstrata
from inductor_cpp.building import build
from inductor_cpp.kernels.names import runtime_text

from benchmarks.measure import environment
from benchmarks.scaling_families import FAMILIES, TRANSFORMERS, Family

SIZES = (100, 300, 1000, 3000, 10000)
FIT_FROM = 300
LAYERS = (2, 12, 48)

TIMED = {
    "cache": ("torchstrata.stages", "compile_functional"),
    "outline": ("loopir.compile", "outline"),
    "patterns": ("loopir.compile", "rewrite_patterns"),
    "decompose": ("primops", "decompose"),
    "lower": ("loopir.compile", "lower"),
    "schedule": ("loopir.compile", "schedule"),
    "plan": ("loopir.schedule.schedule", "plan"),
    "generate": ("loopir.compile", "generate"),
    "host": ("loopir.compile", "build_host"),
}
"""The function that is a stage, by stage; what the functions of others take is not counted."""

STAGES = ("capture", "aotgrad", *TIMED)
ONCE = ("decompose", "lower", "schedule", "generate")
"""The stages from decomposition to code generation, which equal layers go through once."""


class Clock:
    """Processor time by stage, each without the stages inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = [0.0]

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time of the block."""
        self._inside.append(0.0)
        started = time.process_time()
        try:
            yield
        finally:
            taken = time.process_time() - started
            self.seconds[name] += taken - self._inside.pop()
            self._inside[-1] += taken

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a stage."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return function(*args, **kwargs)

        return call


class Unbuilt:
    """Stands for the library of a translation unit that is not compiled; never called."""

    def __getitem__(self, name: str) -> Any:
        return ctypes.CDLL(None)["abs"]


class Compiler:
    """Counts the input of the C++ compiler, and runs it if ``builds``."""

    def __init__(self, builds: bool) -> None:
        self.builds, self.bytes, self.seconds = builds, 0, 0.0
        self._load = build.load_library

    def load_library(self, text: str, *args: Any) -> str:
        """In place of ``build.load_library``."""
        self.bytes += len(text) - len(runtime_text())
        if self.builds:
            started = time.perf_counter()
            key = self._load(text, *args)
            self.seconds += time.perf_counter() - started
            return key
        key = f"unbuilt {len(build._loaded)}"
        build._loaded[key] = Unbuilt()  # type: ignore[assignment]
        return key


def compile_once(family: Family, calls: int, builds: bool) -> dict[str, float]:
    """Seconds by stage, KiB of C++, and seconds of the compiler for one program."""
    function, inputs = family.program(calls)
    clock, compiler = Clock(), Compiler(builds)

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        with clock.stage("aotgrad"):
            torchstrata.compile_fx(graph, examples, options={"cache_dir": directory})
        return clock.timed("run", graph.forward)

    bytecode_dynamo.reset()
    gc.collect()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(torch.set_grad_enabled(family.training))
        for name, (module, attribute) in TIMED.items():
            owner = importlib.import_module(module)
            timed = clock.timed(name, getattr(owner, attribute))
            stack.enter_context(mock.patch.object(owner, attribute, timed))
        stack.enter_context(mock.patch.object(build, "load_library", compiler.load_library))
        captured = bytecode_dynamo.optimize(backend, fullgraph=True, dynamic=False)(function)
        with clock.stage("capture"):
            captured(*inputs)
    row = {name: clock.seconds[name] for name in STAGES}
    row["total"] = sum(row.values())
    return row | {"KiB of C++": compiler.bytes / 1024, "C++ compiler": compiler.seconds}


def exponent(points: Mapping[int, float]) -> float:
    """The slope of log(value) over log(calls), by least squares; NaN without two points."""
    pairs = [(math.log(n), math.log(v)) for n, v in points.items() if n >= FIT_FROM and v > 0]
    if len(pairs) < 2:
        return math.nan
    mean_x, mean_y = (sum(column) / len(pairs) for column in zip(*pairs))
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return covariance / sum((x - mean_x) ** 2 for x, _ in pairs)


def print_family(family: Family, sizes: Sequence[int], stages: bool, builds: bool) -> None:
    """Compiles a family at each size and prints its rows as soon as they are known."""
    compile_once(family, 50, builds)  # imports and caches that don't depend on the program
    rows = {size: compile_once(family, size, builds) for size in sizes}
    shown = [*(STAGES if stages else ()), "total", "KiB of C++"]
    for name in [*shown, *(["C++ compiler"] if builds else [])]:
        points = {size: row[name] for size, row in rows.items()}
        values = " ".join(f"{value:9.2f}" for value in points.values())
        print(f"{family.name:22s} {name:12s} {values}   {exponent(points):5.2f}", flush=True)


def print_blocks(builds: bool) -> None:
    """Prints the stages of transformers with equal layers: the fastest of five runs of each, which
    take turns.
    """
    for family in TRANSFORMERS:
        compile_once(family, 1, builds)
        runs = [{n: compile_once(family, n, builds) for n in LAYERS} for _ in range(5)]
        rows = {n: {k: min(run[n][k] for run in runs) for k in runs[0][n]} for n in LAYERS}
        once = {n: sum(row[name] for name in ONCE) for n, row in rows.items()}
        for layers, row in rows.items():
            stages = "  ".join(f"{name} {row[name]:.3f}" for name in (*STAGES, "total"))
            ratio = once[layers] / once[LAYERS[0]]
            print(f"{family.name:22s} {layers:3d} layers  {stages}")
            print(f"{'':22s} once: {once[layers]:.3f} s, {ratio:.2f} of {LAYERS[0]} layers'")
        totals = {n: row["total"] + row["C++ compiler"] for n, row in rows.items()}
        what = "total with the C++ compiler" if builds else "total without it"
        print(f"{'':22s} {what}: {totals[48] / totals[12]:.2f} of 12 layers'")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [family.name for family in FAMILIES]
    parser.add_argument("families", nargs="*", default=names, metavar="FAMILY", help=str(names))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--stages", action="store_true", help="a row for each stage")
    parser.add_argument("--build", action="store_true", help="run the C++ compiler, too")
    parser.add_argument("--blocks", action="store_true", help="transformers with equal layers")
    arguments = parser.parse_args()
    if unknown := set(arguments.families) - set(names):
        parser.error(f"unknown families {sorted(unknown)}; there are {names}")
    torch.set_num_threads(1)
    print("  ".join(f"{name} {value}" for name, value in environment().items()))
    if arguments.blocks:
        return print_blocks(arguments.build)
    sizes = " ".join(f"{size:9d}" for size in arguments.sizes)
    print(f"{'family':22s} {'stage':12s} {sizes}   exponent")
    for family in FAMILIES:
        if family.name in arguments.families:
            print_family(family, arguments.sizes, arguments.stages, arguments.build)


if __name__ == "__main__":
    main()
