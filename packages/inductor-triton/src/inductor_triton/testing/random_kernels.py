"""Random kernels (needs Hypothesis): results on a CUDA device, or in Triton's interpreter, against
loopir's evaluator.

python -m inductor_triton.testing [--programs 20000] [--jobs 16] [--seed 0] [--seconds 200]
[--excused] [--interpret]

Under ``compute-sanitizer --tool memcheck`` use ``--jobs 0``, which starts no other processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
from loopir import ArtifactStore
from loopir.testing.differential import check_kernels, random_kernels, report

from inductor_triton.generator import TritonCodeGenerator

UNIT = 50
LARGEST = 70
"""Extents are up to this, so that rows end within, at and beyond blocks."""


def _unit(task: tuple[int, int, bool]) -> tuple[int, list[str], list[str]]:
    number, count, interpret = task
    torch.set_num_threads(1)
    device = "cpu" if interpret else "cuda"
    drawn = random_kernels(count, number, device, LARGEST)
    excused: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        store = ArtifactStore(directory)
        return (
            len(drawn),
            check_kernels(drawn, TritonCodeGenerator(device, interpret), store, excused),
            excused,
        )


def _stay_on_one_core(cores: Any) -> None:
    """Each process compiles one kernel at a time; there are enough processes."""
    os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")
    available = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {available[cores.get() % len(available)]})


def sweep(
    programs: int, jobs: int, first: int, interpret: bool
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Counts, failures and ill-conditioned kernels by unit. Processes are spawned: a CUDA context
    does not survive a fork.
    """
    tasks = [
        (first + start // UNIT, min(UNIT, programs - start), interpret)
        for start in range(0, programs, UNIT)
    ]
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=0, help="processes at a time; 0: this one")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help=f"of the first {UNIT} programs; each unit has the next one",
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start no unit after so many"
    )
    parser.add_argument("--excused", action="store_true", help="print ill-conditioned kernels too")
    parser.add_argument(
        "--interpret", action="store_true", help="in Triton's interpreter, without a GPU"
    )
    options = parser.parse_args()
    done = wrong = unclear = 0
    started = time.monotonic()
    for count, failures, excused in sweep(
        options.programs, options.jobs, options.seed, options.interpret
    ):
        done, wrong, unclear = done + count, wrong + len(failures), unclear + len(excused)
        for text in (*failures, *(excused if options.excused else ())):
            print(text, flush=True)
        if time.monotonic() - started > options.seconds:
            break
    where = "the interpreter" if options.interpret else torch.cuda.get_device_name()
    print(report(done, f"seed {options.seed}, on {where}", wrong, unclear))
    return int(wrong > 0)
