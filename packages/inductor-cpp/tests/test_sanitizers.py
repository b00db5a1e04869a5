"""Kernels under the address and undefined-behaviour sanitizers, in a process that preloads their
runtimes.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from inductor_cpp import find_toolchain
from inductor_cpp.testing import preload

CONFORMANCE = """
import dataclasses, sys, tempfile
from inductor_cpp import CppCodeGenerator, Toolchain, find_toolchain
from inductor_cpp.testing import Sanitized
from loopir import ArtifactStore
from loopir.testing import CASES, check_code_generator

toolchain = Sanitized(**{f.name: getattr(find_toolchain(), f.name) for f in dataclasses.fields(Toolchain)})
with tempfile.TemporaryDirectory() as directory:
    check_code_generator(CppCodeGenerator(toolchain), ArtifactStore(directory), cases=CASES[int(sys.argv[1])::12])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("-c", CONFORMANCE, "0"),
        ("-c", CONFORMANCE, "5"),
        ("-m", "inductor_cpp.testing", "--sanitize", "--programs", "300"),
    ],
    ids=["conformance 0", "conformance 5", "random"],
)
def test_no_sanitizer_reports(command: tuple[str, ...]) -> None:
    environment = preload(find_toolchain().compiler)
    if not environment:
        pytest.skip("the compiler has no sanitizer runtimes")
    environment = {**os.environ, **environment, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
