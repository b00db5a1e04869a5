"""Random kernels (extra ``inductor-cpp[testing]``): compiled results against loopir's evaluator,
many per translation unit.

python -m inductor_cpp.testing [--programs 50000] [--jobs 2] [--seed 0] [--isa avx2] [--sanitize]
[--excused]
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import torch
from loopir import ArtifactStore
from loopir.testing.differential import check_kernels, random_kernels, report

from inductor_cpp.building.toolchain import ISAS, Toolchain, detect_features, find_toolchain
from inductor_cpp.generator import CppCodeGenerator

UNIT = 200
SANITIZERS = ("libasan.so", "libubsan.so")


class Sanitized(Toolchain):
    """A report of the address or undefined-behaviour sanitizer ends the process, which must have
    preloaded their runtimes.
    """

    @property
    def flags(self) -> tuple[str, ...]:
        plain = (flag for flag in super().flags if flag != "-O2")
        return (*plain, "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def _unit(task: tuple[int, int, Toolchain]) -> tuple[list[str], list[str]]:
    number, count, toolchain = task
    torch.set_num_threads(1)
    excused: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        return check_kernels(
            random_kernels(count, number),
            CppCodeGenerator(toolchain),
            ArtifactStore(directory),
            excused,
        ), excused


def sweep(
    programs: int, jobs: int, first: int, toolchain: Toolchain
) -> Iterator[tuple[list[str], list[str]]]:
    """Failures and ill-conditioned kernels, unit by unit; each process ends after a few, so that
    its libraries are unloaded.
    """
    tasks = [
        (first + start // UNIT, min(UNIT, programs - start), toolchain)
        for start in range(0, programs, UNIT)
    ]
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=8) as pool:
        yield from pool.imap_unordered(_unit, tasks)


def preload(compiler: str) -> dict[str, str]:
    """Environment for a process that loads sanitized code; empty when the compiler has no sanitizer
    runtimes.
    """
    paths = []
    for name in SANITIZERS:
        answer = subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        )
        paths.append(answer.stdout.strip())
    if not all(map(os.path.isabs, paths)):
        return {}
    return {
        "LD_PRELOAD": " ".join(paths),
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
    }


def main() -> int:
    """Prints the failures and one line of counts; 1 when there are failures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first translation unit; each has the next one"
    )
    parser.add_argument(
        "--isa", choices=ISAS, help="instruction set (default: the best of this processor)"
    )
    parser.add_argument("--excused", action="store_true", help="print ill-conditioned kernels too")
    parser.add_argument(
        "--sanitize",
        action="store_true",
        help="with the address and undefined-behaviour sanitizers",
    )
    options = parser.parse_args()
    toolchain = find_toolchain()
    if options.isa:
        toolchain = dataclasses.replace(
            toolchain, isa=options.isa, features=detect_features(options.isa)
        )
    if options.sanitize:
        environment = preload(toolchain.compiler)
        if not environment:
            sys.exit(f"{toolchain.compiler} has no sanitizer runtimes")
        if os.environ.get("LD_PRELOAD") != environment["LD_PRELOAD"]:
            os.execve(
                sys.executable,
                [sys.executable, "-m", "inductor_cpp.testing", *sys.argv[1:]],
                os.environ | environment,
            )
        toolchain = Sanitized(
            **{f.name: getattr(toolchain, f.name) for f in dataclasses.fields(Toolchain)}
        )
    wrong = unclear = 0
    for failures, excused in sweep(options.programs, options.jobs, options.seed, toolchain):
        wrong, unclear = wrong + len(failures), unclear + len(excused)
        for text in (*failures, *(excused if options.excused else ())):
            print(text, flush=True)
    print(report(options.programs, f"seed {options.seed}, {toolchain.isa}", wrong, unclear))
    return int(wrong > 0)
