"""A sample of kernels under the address and undefined-behaviour sanitizers, in a process that preloads their runtime."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from inductor_cpp import find_toolchain

SCRIPT = """
import dataclasses, sys, tempfile
from inductor_cpp import CppCodeGenerator, Toolchain, find_toolchain
from loopir import ArtifactStore
from loopir.testing import check_code_generator
from loopir.testing.conformance import CASES

class Sanitized(Toolchain):
    @property
    def flags(self):
        return (*(f for f in super().flags if f != "-O2"), "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

toolchain = Sanitized(**{f.name: getattr(find_toolchain(), f.name) for f in dataclasses.fields(Toolchain)})
cases = CASES[int(sys.argv[1])::int(sys.argv[2])]
with tempfile.TemporaryDirectory() as directory:
    print("launches", check_code_generator(CppCodeGenerator(toolchain), ArtifactStore(directory + "/store"), cases=cases))
"""
STEP = 12


def library(name: str) -> str:
    """The path of a sanitizer's runtime, or an empty text."""
    compiler = find_toolchain().compiler
    path = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
    return path if os.path.isabs(path) else ""


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 5])
def test_no_sanitizer_reports(start: int) -> None:
    address, undefined = library("libasan.so"), library("libubsan.so")
    if not (address and undefined):
        pytest.skip("the compiler has no sanitizer runtimes")
    environment = {
        **os.environ, "LD_PRELOAD": f"{address} {undefined}", "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", SCRIPT, str(start), str(STEP)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "launches" in done.stdout, done.stderr[-4000:]
