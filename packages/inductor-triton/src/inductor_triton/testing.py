"""Random kernels (needs Hypothesis): results on a CUDA device, or in Triton's interpreter, against loopir's evaluator.

python -m inductor_triton.testing [--programs 20000] [--jobs 16] [--seed 0] [--seconds 200] [--excused] [--interpret]

Under ``compute-sanitizer --tool memcheck`` use ``--jobs 0``, which starts no other processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from loopir import ArtifactStore, BuildError, Kernel, evaluate_kernel, format_kernel
from loopir.testing.conditioning import unexplained
from loopir.testing.conformance import Case, make_inputs
from loopir.testing.strategies import kernels

from inductor_triton.generator import TritonCodeGenerator

UNIT = 50
QUIET: Any = list(HealthCheck)
TOLERANCES: Any = {"rtol": 1e-4, "atol": 1e-3}
SIZE = 5  # of the symbols in drawn kernels
LARGEST = 70
"""Extents are up to this, so that rows end within, at and beyond blocks."""


def random_kernels(count: int, number: int, device: str = "cuda", max_extent: int = LARGEST) -> list[Kernel]:
    """Different kernels drawn from loopir's strategy; ``number`` is the seed."""
    found: dict[str, Kernel] = {}

    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=QUIET)
    @given(kernels(device=device, max_extent=max_extent))
    def collect(kernel: Kernel) -> None:
        found[format_kernel(kernel)] = kernel

    for attempt in range(8):
        seed(f"{number} {attempt}")(collect)()
        if len(found) >= count:
            break
    return list(found.values())[:count]


def check_kernels(
    drawn: Sequence[Kernel], generator: TritonCodeGenerator, store: ArtifactStore, excused: list[str] | None = None
) -> list[str]:
    """A description of each kernel whose results differ from the evaluator's.

    A difference is none where the evaluator's own result is as uncertain (``loopir.testing.conditioning``): such kernels are
    added to ``excused``.
    """
    sources = [generator.generate(kernel) for kernel in drawn]
    try:
        launches: Sequence[Callable[..., None] | None] = generator.build(sources, store)
    except BuildError:
        launches = [None] * len(sources)
    failures = []
    for kernel, source, launch in zip(drawn, sources, launches):
        sizes = [SIZE] * len(kernel.sizes)
        case = Case("random", format_kernel(kernel), limits={"*": (-3, 3)})
        tensors = make_inputs(case, kernel, sizes, generator.device)
        inputs, expected = ([tensor.cpu().clone() for tensor in tensors] for _ in range(2))
        evaluate_kernel(kernel, expected, sizes)
        actual: list[torch.Tensor] = []
        try:
            (launch or generator.build([source], store)[0])(*tensors, *sizes)
            actual = [tensor.cpu() for tensor in tensors]
            for result, wanted in zip(actual, expected):
                torch.testing.assert_close(result, wanted, **TOLERANCES, equal_nan=True)
        except AssertionError as error:
            left = unexplained(kernel, inputs, sizes, actual, expected, **TOLERANCES)
            if left:
                failures.append(f"{left}\n{case.text}")
            elif excused is not None:
                excused.append(f"{error}\n{case.text}")
        except (RuntimeError, IndexError) as error:
            failures.append(f"{type(error).__name__}: {error}\n{case.text}")
    return failures


def _unit(task: tuple[int, int, bool]) -> tuple[int, list[str], list[str]]:
    number, count, interpret = task
    torch.set_num_threads(1)
    device = "cpu" if interpret else "cuda"
    drawn = random_kernels(count, number, device)
    excused: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        store = ArtifactStore(directory)
        return len(drawn), check_kernels(drawn, TritonCodeGenerator(device, interpret), store, excused), excused


def _stay_on_one_core(cores: Any) -> None:
    """Each process compiles one kernel at a time; there are enough processes."""
    os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")
    available = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {available[cores.get() % len(available)]})


def sweep(programs: int, jobs: int, first: int, interpret: bool) -> Iterator[tuple[int, list[str], list[str]]]:
    """Counts, failures and ill-conditioned kernels by unit. Processes are spawned: a CUDA context does not survive a fork."""
    tasks = [(first + start // UNIT, min(UNIT, programs - start), interpret) for start in range(0, programs, UNIT)]
    if jobs == 0:
        yield from map(_unit, tasks)
        return
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for number in range(jobs):
        cores.put(number)
    with context.Pool(jobs, _stay_on_one_core, (cores,)) as pool:
        yield from pool.imap_unordered(_unit, tasks)


def main() -> int:
    """Prints the failures and one line of counts; 1 when there are failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=0, help="processes at a time; 0: this one")
    parser.add_argument("--seed", type=int, default=0, help=f"of the first {UNIT} programs; each unit has the next one")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no unit after so many")
    parser.add_argument("--excused", action="store_true", help="print ill-conditioned kernels too")
    parser.add_argument("--interpret", action="store_true", help="in Triton's interpreter, without a GPU")
    options = parser.parse_args()
    done = wrong = unclear = 0
    started = time.monotonic()
    for count, failures, excused in sweep(options.programs, options.jobs, options.seed, options.interpret):
        done, wrong, unclear = done + count, wrong + len(failures), unclear + len(excused)
        for text in (*failures, *(excused if options.excused else ())):
            print(text, flush=True)
        if time.monotonic() - started > options.seconds:
            break
    where = "the interpreter" if options.interpret else torch.cuda.get_device_name()
    print(
        f"{done} programs, seed {options.seed}, on {where}: {wrong} differ from the evaluator, "
        f"{unclear} as far as the evaluator's own results spread when its roundings are off by an ULP"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
